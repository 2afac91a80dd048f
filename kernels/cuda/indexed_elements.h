// Reads or writes elements of a tensor by index along one dimension, and computes the derivatives.
// CUDA twins of kernels/indexed_elements.h, which defines the operations.
//
// Device memory, aligned to its elements. Asynchronous on `stream`. Returns the launch error, if
// any. Bandwidth-bound.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/out_of_range.h"
#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

// Maps each element of an index to an element of a tensor. Both have fewer than 2^31 elements.
struct IndexedElements {
  static constexpr int kRankMax = 12;

  // `tensor` and `index`: shapes of at most kRankMax dimensions.
  IndexedElements(const std::vector<int64_t>& tensor, const std::vector<int64_t>& index,
                  int64_t axis);

  int64_t indices;          // elements of the index
  int64_t tensor_elements;  // of the tensor
  int32_t size;             // of the tensor along the axis
  int axis;                 // among the dimensions below
  int rank;
  // Innermost first. Neighbouring dimensions are merged if the inner ones are equal in tensor and
  // index.
  uint32_t index_sizes[kRankMax];
  int64_t tensor_strides[kRankMax];
};

// y has the index's shape, with elements of `element_bytes` = 2 or 4. An index outside [-size,
// size) is reported in `out_of_range` and treated as 0.
cudaError_t GatherElements(void* y, const void* x, const int32_t* index,
                           const IndexedElements& elements, int element_bytes,
                           OutOfRange* out_of_range, cudaStream_t stream);

// dx = the sums of dy by index, in f32 and in the order of the indices; elements that no index
// names are zero. The indices are sorted, then one thread sums those of each element. Results are
// bit-identical between runs. Slow if most of a long index names one element.
int64_t GatherElementsGradWorkspaceBytes(const IndexedElements& elements);
cudaError_t GatherElementsGrad(void* dx, const void* dy, const int32_t* index, Type type,
                               const IndexedElements& elements, void* workspace,
                               cudaStream_t stream);

enum class ScatterReduction { kNone, kAdd };

// kNone: the last update in the index's order wins, whichever thread runs last. kAdd: sums as in
// GatherElementsGrad, rounded once. Takes every type. Reports an index out of range.
int64_t ScatterElementsWorkspaceBytes(const IndexedElements& elements, ScatterReduction reduction);
cudaError_t ScatterElements(void* y, const void* data, const int32_t* index, const void* updates,
                            Type type, const IndexedElements& elements, ScatterReduction reduction,
                            void* workspace, OutOfRange* out_of_range, cudaStream_t stream);

// The derivatives for kNone. For kAdd they are dy and GatherElements. `element_bytes` is 2 or 4.
// ScatterElementsGradUpdates uses the workspace of ScatterElements.
cudaError_t ScatterElementsGradData(void* ddata, const void* dy, const int32_t* index,
                                    const IndexedElements& elements, int element_bytes,
                                    cudaStream_t stream);
cudaError_t ScatterElementsGradUpdates(void* dupdates, const void* dy, const int32_t* index,
                                       const IndexedElements& elements, int element_bytes,
                                       void* workspace, cudaStream_t stream);

}  // namespace muster::kernels::cuda
