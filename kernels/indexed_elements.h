// Elements of a tensor taken or written by index along one dimension (torch.gather, scatter and
// scatter_add), and the derivatives. Row-major, in parallel, bandwidth-bound.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/dimensions.h"

namespace muster::kernels {

// Maps each element of an index to an element of a tensor. Both have the same place, except along
// the axis, where the place in the tensor is the value of the index's element. Values are in
// [-size, size) (check with FirstOutOfRange in kernels/embedding.h); negative ones count from the
// end. The index has as many dimensions as the tensor. Along every dimension except the axis it is
// at most as large.
//
// A lane is a set of elements that differ only in their place along the axis. No two lanes share an
// element.
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

  // Returns the place along the axis that an index names.
  int64_t Place(int32_t index) const { return index < 0 ? index + size_ : index; }

 private:
  // A dimension other than the axis, or several neighbours merged into one: the inner ones have
  // equal sizes in tensor and index.
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
  int64_t tensor_stride_ = 1;  // along the axis
  std::vector<Way> ways_;      // innermost first
};

// y has the index's shape. Requires: `element_bytes` is 2 or 4, and y overlaps no input.
void GatherElements(void* y, const void* x, const int32_t* index, const IndexedElements& elements,
                    int element_bytes);

// Each element of dx is the sum of the elements of dy whose index names it, in the index's order.
// Elements that no index names are zero.
void GatherElementsGrad(float* dx, const float* dy, const int32_t* index,
                        const IndexedElements& elements);

// y is data in which the updates replace the elements that the index names. `updates` has the
// index's shape. If the index names an element twice, the last update in the index's order stays.
// Requires: elements have four bytes, and y overlaps no input.
void ScatterElements(void* y, const void* data, const int32_t* index, const void* updates,
                     const IndexedElements& elements);

// Like ScatterElements, but adds the updates in the index's order. T is float or int32_t.
template <typename T>
void ScatterElementsAdd(T* y, const T* data, const int32_t* index, const T* updates,
                        const IndexedElements& elements);

// Derivatives of ScatterElements: ddata = dy, but zero for elements that the index names; dupdates
// = dy by index, but zero for an update that a later one replaced. (The derivatives of
// ScatterElementsAdd are dy and GatherElements.)
void ScatterElementsGradData(float* ddata, const float* dy, const int32_t* index,
                             const IndexedElements& elements);
// `last` is scratch memory with one number per element of the tensor.
void ScatterElementsGradUpdates(float* dupdates, const float* dy, const int32_t* index,
                                const IndexedElements& elements, int64_t* last);

}  // namespace muster::kernels
