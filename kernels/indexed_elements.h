// Elements of a tensor taken or written by index along one dimension (torch.gather, scatter and
// scatter_add), and the derivatives. Row-major, in parallel, bandwidth-bound.
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

// y = data with the elements that the index names replaced by the updates, which have the index's
// shape: by the last in the index's order where it names one twice. Elements of four bytes. y
// overlaps nothing.
void ScatterElements(void* y, const void* data, const int32_t* index, const void* updates,
                     const IndexedElements& elements);

// The same, but that updates are added, in the index's order. Of float and int32_t.
template <typename T>
void ScatterElementsAdd(T* y, const T* data, const int32_t* index, const T* updates,
                        const IndexedElements& elements);

// Derivatives of ScatterElements: ddata = dy, or zero where the index names an element; dupdates =
// dy by index, or zero where a later one replaced the update. (Of ScatterElementsAdd they are dy
// and GatherElements.)
void ScatterElementsGradData(float* ddata, const float* dy, const int32_t* index,
                             const IndexedElements& elements);
// `last`, scratch, one for each of the tensor's elements.
void ScatterElementsGradUpdates(float* dupdates, const float* dy, const int32_t* index,
                                const IndexedElements& elements, int64_t* last);

}  // namespace muster::kernels
