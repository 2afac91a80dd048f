#include "kernels/gather.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduction_loop.h"

namespace muster::kernels {
namespace {

// Returns the slice that an index names, or -1 if the tensor does not have it.
int64_t SliceAt(int32_t index, const GatherShape& shape) {
  if (!shape.first.has_value()) return index < 0 ? index + shape.size : index;
  const int64_t slice = index - *shape.first;
  return slice < shape.size ? std::max<int64_t>(slice, -1) : -1;
}

int64_t Grain(int64_t elements) { return std::max<int64_t>(1, (1 << 14) / elements); }

template <typename T>
void GatherElements(T* y, const T* x, const int32_t* index, const GatherShape& s) {
  ParallelFor(s.outer * s.indices, Grain(s.inner), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t slice = SliceAt(index[row % s.indices], s);
      if (slice < 0) {
        std::fill_n(y + row * s.inner, s.inner, T{0});
        continue;
      }
      const T* from = x + (row / s.indices * s.size + slice) * s.inner;
      if (s.inner == 1) {
        y[row] = *from;
      } else {
        std::memcpy(y + row * s.inner, from, s.inner * sizeof(T));
      }
    }
  });
}

}  // namespace

void Gather(void* y, const void* x, const int32_t* index, const GatherShape& shape,
            int element_bytes) {
  if (element_bytes == 2) {
    GatherElements(static_cast<uint16_t*>(y), static_cast<const uint16_t*>(x), index, shape);
  } else {
    GatherElements(static_cast<uint32_t*>(y), static_cast<const uint32_t*>(x), index, shape);
  }
}

void GatherGrad(float* dx, const float* dy, const int32_t* index, const GatherShape& shape) {
  const GatherShape s = shape;
  ElementwiseLoop* add = Elementwise().add;
  // Each piece owns slices of dx and scans all indices for them, in order. So there are no more
  // pieces than threads, with slices large enough to be worth the scan.
  const int64_t slices = s.outer * s.size;
  const int64_t share = (slices + ParallelThreads() - 1) / ParallelThreads();
  ParallelFor(slices, std::max(share, Grain(s.inner)), [=](int64_t begin, int64_t end) {
    std::fill(dx + begin * s.inner, dx + end * s.inner, 0.0f);
    for (int64_t outer = begin / s.size; outer * s.size < end; ++outer) {
      for (int64_t i = 0; i < s.indices; ++i) {
        const int64_t own = SliceAt(index[i], s);
        const int64_t slice = outer * s.size + own;
        if (own < 0 || slice < begin || slice >= end) continue;
        float* to = dx + slice * s.inner;
        const float* from = dy + (outer * s.indices + i) * s.inner;
        if (s.inner == 1) {
          *to += *from;
        } else {
          const float* sources[] = {to, from};
          add(to, sources, /*repeats=*/0, s.inner);
        }
      }
    }
  });
}

}  // namespace muster::kernels
