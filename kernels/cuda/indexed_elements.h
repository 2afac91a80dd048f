// Elements of a tensor taken or written by index along one dimension, and the derivatives: CUDA
// twins of kernels/indexed_elements.h, where their meaning is.
//
// Device memory, aligned to its elements. Asynchronous on `stream`; the launch error, if any, is
// returned. Bandwidth-bound.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/out_of_range.h"
#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

// Which element of a tensor each element of an index stands for; both have fewer than 2^31.
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
  // Innermost first, neighbours of which the inner ones are alike as one.
  uint32_t index_sizes[kRankMax];
  int64_t tensor_strides[kRankMax];
};

// y, of the index's shape, of `element_bytes` = 2 or 4. An index outside [-size, size) sets
// *out_of_range to 1 and is taken for 0.
cudaError_t GatherElements(void* y, const void* x, const int32_t* index,
                           const IndexedElements& elements, int element_bytes,
                           OutOfRange* out_of_range, cudaStream_t stream);

// dx = the sums of dy by index, in f32 and in the order of the indices; what no index names is
// zero. The indices are sorted, then a thread sums those of one element: results repeat to the bit.
// Long where one element is named by most of a long index.
int64_t GatherElementsGradWorkspaceBytes(const IndexedElements& elements);
cudaError_t GatherElementsGrad(void* dx, const void* dy, const int32_t* index, Type type,
                               const IndexedElements& elements, void* workspace,
                               cudaStream_t stream);

enum class ScatterReduction { kNone, kAdd };

// kNone: the last update in the index's order wins, whatever thread comes last. kAdd: sums as
// GatherElementsGrad's, rounded once. Of every type. An index outside is reported.
int64_t ScatterElementsWorkspaceBytes(const IndexedElements& elements, ScatterReduction reduction);
cudaError_t ScatterElements(void* y, const void* data, const int32_t* index, const void* updates,
                            Type type, const IndexedElements& elements, ScatterReduction reduction,
                            void* workspace, OutOfRange* out_of_range, cudaStream_t stream);

// The derivatives with kNone; with kAdd they are dy and GatherElements. Of `element_bytes` = 2 or
// 4; the workspace of GradUpdates is that of ScatterElements.
cudaError_t ScatterElementsGradData(void* ddata, const void* dy, const int32_t* index,
                                    const IndexedElements& elements, int element_bytes,
                                    cudaStream_t stream);
cudaError_t ScatterElementsGradUpdates(void* dupdates, const void* dy, const int32_t* index,
                                       const IndexedElements& elements, int element_bytes,
                                       void* workspace, cudaStream_t stream);

}  // namespace muster::kernels::cuda
