#include "kernels/cumulative_sum.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"

namespace muster::kernels {
namespace {

constexpr int64_t kGrain = 1 << 14;
constexpr int64_t kPanel = 64;  // at most this many neighbours are summed side by side

template <typename T, typename Total>
void Run(T* y, const T* x, const CumulativeShape& s) {
  const int64_t panels = (s.inner + kPanel - 1) / kPanel;
  const int64_t grain = std::max<int64_t>(1, kGrain / (s.size * std::min(s.inner, kPanel)));
  ParallelFor(s.outer * panels, grain, [=](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % panels * kPanel, n = std::min(kPanel, s.inner - first);
      Total totals[kPanel] = {};
      for (int64_t k = 0; k < s.size; ++k) {
        const int64_t row = task / panels * s.size + (s.reverse ? s.size - 1 - k : k);
        const int64_t offset = row * s.inner + first;
        for (int64_t i = 0; i < n; ++i) {
          const Total before = totals[i];
          totals[i] += static_cast<Total>(x[offset + i]);
          y[offset + i] = static_cast<T>(s.exclusive ? before : totals[i]);
        }
      }
    }
  });
}

}  // namespace

void CumulativeSum(float* y, const float* x, const CumulativeShape& shape) {
  Run<float, double>(y, x, shape);
}

void CumulativeSum(int32_t* y, const int32_t* x, const CumulativeShape& shape) {
  Run<int32_t, uint32_t>(y, x, shape);
}

}  // namespace muster::kernels
