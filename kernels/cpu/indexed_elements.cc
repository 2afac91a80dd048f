#include "kernels/indexed_elements.h"

#include <algorithm>
#include <cstring>

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

// Calls f(element of the index, element of the tensor), in the index's order within a lane.
template <typename F>
void ForEachPair(const IndexedElements& elements, const int32_t* index, F f) {
  ForEachLane(elements, [&](const IndexedElements::Lane& lane) {
    for (int64_t i = 0; i < elements.length(); ++i) {
      const int64_t at = lane.IndexAt(i);
      f(at, lane.TensorAt(elements.Place(index[at])));
    }
  });
}

template <typename T>
void Copy(T* y, const T* x, int64_t n) {
  ParallelFor(n, kGrain, [=](int64_t begin, int64_t end) {
    std::memcpy(y + begin, x + begin, (end - begin) * sizeof(T));
  });
}

template <typename T>
void Take(T* y, const T* x, const int32_t* index, const IndexedElements& elements) {
  ForEachPair(elements, index, [=](int64_t at, int64_t element) { y[at] = x[element]; });
}

}  // namespace

IndexedElements::IndexedElements(Dimensions tensor, Dimensions index, int64_t axis)
    : size_(tensor[axis]), length_(index[axis]), tensor_elements_(Elements(tensor)) {
  int64_t index_stride = 1, tensor_stride = 1;
  bool extends = false;  // whether this dimension extends the previous one
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
  ForEachPair(elements, index, [=](int64_t at, int64_t element) { dx[element] += dy[at]; });
}

void ScatterElements(void* y, const void* data, const int32_t* index, const void* updates,
                     const IndexedElements& elements) {
  auto* to = static_cast<uint32_t*>(y);
  const auto* from = static_cast<const uint32_t*>(updates);
  Copy(to, static_cast<const uint32_t*>(data), elements.tensor_elements());
  ForEachPair(elements, index, [=](int64_t at, int64_t element) { to[element] = from[at]; });
}

template <typename T>
void ScatterElementsAdd(T* y, const T* data, const int32_t* index, const T* updates,
                        const IndexedElements& elements) {
  Copy(y, data, elements.tensor_elements());
  ForEachPair(elements, index, [=](int64_t at, int64_t element) { y[element] += updates[at]; });
}
template void ScatterElementsAdd(float*, const float*, const int32_t*, const float*,
                                 const IndexedElements&);
template void ScatterElementsAdd(int32_t*, const int32_t*, const int32_t*, const int32_t*,
                                 const IndexedElements&);

void ScatterElementsGradData(float* ddata, const float* dy, const int32_t* index,
                             const IndexedElements& elements) {
  Copy(ddata, dy, elements.tensor_elements());
  ForEachPair(elements, index, [=](int64_t, int64_t element) { ddata[element] = 0; });
}

void ScatterElementsGradUpdates(float* dupdates, const float* dy, const int32_t* index,
                                const IndexedElements& elements, int64_t* last) {
  ForEachPair(elements, index, [=](int64_t at, int64_t element) { last[element] = at; });
  ForEachPair(elements, index, [=](int64_t at, int64_t element) {
    dupdates[at] = last[element] == at ? dy[element] : 0;
  });
}

}  // namespace muster::kernels
