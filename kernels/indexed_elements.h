// Elements of a tensor taken by index along one dimension (torch.gather), and the derivative.
// Row-major, in parallel, bandwidth-bound.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/dimensions.h"

namespace muster::kernels {

// Which element of a tensor each element of an index stands for: the one at its own place, but
// along the axis at the index's value, in [-size, size), negative ones counting from the end
// (FirstOutOfRange in kernels/embedding.h tells). The index has as many dimensions as the tensor
// and is, but along the axis, at most as large.
//
// A lane is what differs in its place along the axis alone. No two lanes share an element.
class IndexedElements {
 public:
  IndexedElements(Dimensions tensor, Dimensions index, int64_t axis);

  int64_t size() const { return size_; }      // of the tensor along the axis
  int64_t length() const { return length_; }  // of the index along the axis
  int64_t lanes() const { return lanes_; }
  int64_t indices() const { return lanes_ * length_; }
  int64_t tensor_elements() const { return tensor_elements_; }

  struct Lane {
    int64_t index_first;
    int64_t index_stride;
    int64_t tensor_first;
    int64_t tensor_stride;

    int64_t IndexAt(int64_t i) const { return index_first + i * index_stride; }
    int64_t TensorAt(int64_t place) const { return tensor_first + place * tensor_stride; }
  };
  Lane LaneAt(int64_t lane) const;

  // Where along the axis an index points.
  int64_t Place(int32_t index) const { return index < 0 ? index + size_ : index; }

 private:
  // A dimension that is not the axis, or neighbours of which the inner ones are alike.
  struct Way {
    int64_t size;  // of the index
    int64_t index_stride;
    int64_t tensor_stride;
  };

  int64_t size_;
  int64_t length_;
  int64_t lanes_ = 1;
  int64_t tensor_elements_;
  int64_t index_stride_ = 1;   // along the axis
  int64_t tensor_stride_ = 1;  // likewise
  std::vector<Way> ways_;      // innermost first
};

// y, of the index's shape. Elements of `element_bytes` = 2 or 4. y overlaps nothing.
void GatherElements(void* y, const void* x, const int32_t* index, const IndexedElements& elements,
                    int element_bytes);

// dx = sum of the elements of dy by index, in their order; what no index names is zero.
void GatherElementsGrad(float* dx, const float* dy, const int32_t* index,
                        const IndexedElements& elements);

}  // namespace muster::kernels
