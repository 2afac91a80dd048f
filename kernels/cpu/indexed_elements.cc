#include "kernels/indexed_elements.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"

namespace muster::kernels {
namespace {

constexpr int64_t kGrain = 1 << 14;

// Calls f(lane) for every lane, in parallel.
template <typename F>
void ForEachLane(const IndexedElements& elements, F f) {
  const int64_t grain = std::max<int64_t>(1, kGrain / elements.length());
  ParallelFor(elements.lanes(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t lane = begin; lane < end; ++lane) f(elements.LaneAt(lane));
  });
}

template <typename T>
void Take(T* y, const T* x, const int32_t* index, const IndexedElements& elements) {
  ForEachLane(elements, [&](const IndexedElements::Lane& lane) {
    for (int64_t i = 0; i < elements.length(); ++i) {
      const int64_t at = lane.IndexAt(i);
      y[at] = x[lane.TensorAt(elements.Place(index[at]))];
    }
  });
}

}  // namespace

IndexedElements::IndexedElements(Dimensions tensor, Dimensions index, int64_t axis)
    : size_(tensor[axis]), length_(index[axis]), tensor_elements_(Elements(tensor)) {
  int64_t index_stride = 1, tensor_stride = 1;
  bool extends = false;  // the way before it
  for (int64_t d = static_cast<int64_t>(tensor.size()) - 1; d >= 0; --d) {
    if (d == axis) {
      index_stride_ = index_stride;
      tensor_stride_ = tensor_stride;
      extends = false;
    } else {
      lanes_ *= index[d];
      if (extends) {
        ways_.back().size *= index[d];
      } else {
        ways_.push_back({index[d], index_stride, tensor_stride});
      }
      extends = index[d] == tensor[d];
    }
    index_stride *= index[d];
    tensor_stride *= tensor[d];
  }
}

IndexedElements::Lane IndexedElements::LaneAt(int64_t lane) const {
  Lane found{0, index_stride_, 0, tensor_stride_};
  for (const Way& way : ways_) {
    const int64_t place = lane % way.size;
    lane /= way.size;
    found.index_first += place * way.index_stride;
    found.tensor_first += place * way.tensor_stride;
  }
  return found;
}

void GatherElements(void* y, const void* x, const int32_t* index, const IndexedElements& elements,
                    int element_bytes) {
  if (element_bytes == 2) {
    Take(static_cast<uint16_t*>(y), static_cast<const uint16_t*>(x), index, elements);
  } else {
    Take(static_cast<uint32_t*>(y), static_cast<const uint32_t*>(x), index, elements);
  }
}

void GatherElementsGrad(float* dx, const float* dy, const int32_t* index,
                        const IndexedElements& elements) {
  ParallelFor(elements.tensor_elements(), kGrain,
              [=](int64_t begin, int64_t end) { std::fill(dx + begin, dx + end, 0.0f); });
  ForEachLane(elements, [&](const IndexedElements::Lane& lane) {
    for (int64_t i = 0; i < elements.length(); ++i) {
      const int64_t at = lane.IndexAt(i);
      dx[lane.TensorAt(elements.Place(index[at]))] += dy[at];
    }
  });
}

}  // namespace muster::kernels
