#include "kernels/pooling.h"

#include <algorithm>

namespace muster::kernels {
namespace {

// Calls f(pixel of y, position in x of the first maximum of its window). A NaN counts as the
// maximum.
template <typename F>
inline void ForEachMaximum(const float* x, const PoolShape& s, F f) {
  int64_t out = 0;
  for (int64_t plane = 0; plane < s.planes; ++plane) {
    for (int64_t row = 0; row < s.output_height(); ++row) {
      for (int64_t column = 0; column < s.output_width(); ++column) {
        const int64_t corner = (plane * s.height + row * s.stride) * s.width + column * s.stride;
        int64_t best = corner;
        for (int64_t i = 0; i < s.kernel; ++i) {
          for (int64_t j = 0; j < s.kernel; ++j) {
            const int64_t at = corner + i * s.width + j;
            const bool largest_is_number = x[best] == x[best];
            if (largest_is_number && !(x[at] <= x[best])) best = at;
          }
        }
        f(out++, best);
      }
    }
  }
}

}  // namespace

void MaxPool2d(float* y, const float* x, const PoolShape& shape) {
  ForEachMaximum(x, shape, [y, x](int64_t out, int64_t best) { y[out] = x[best]; });
}

void MaxPool2dGrad(float* dx, const float* dy, const float* x, const PoolShape& shape) {
  std::fill_n(dx, shape.planes * shape.height * shape.width, 0.0f);
  ForEachMaximum(x, shape, [dx, dy](int64_t out, int64_t best) { dx[best] += dy[out]; });
}

}  // namespace muster::kernels
