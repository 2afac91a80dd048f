#include "kernels/cpu/row_norm.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_level.h"

namespace muster::kernels {
namespace {

constexpr int64_t kPanel = 512;  // at most this many columns are summed by one piece of work
// Rows added in float before a column's sum is added in double.
constexpr int64_t kRowsInFloat = 64;

}  // namespace

const NormLoops& Norms() {
  return ForThisProcessor(baseline::kNormLoops, avx2::kNormLoops, avx512::kNormLoops);
}

int64_t RowGrain(int64_t channels) { return std::max<int64_t>(1, (1 << 14) / channels); }

void RowNormGradParameters(float* dgain, float* dbias, const float* dy, const float* x,
                           const float* mean, const float* rstd, int64_t rows, int64_t channels) {
  const NormLoops& loops = Norms();
  // The split of the columns does not change a column's sum.
  ParallelFor(
      channels, std::max<int64_t>(16, (1 << 14) / rows / 16 * 16), [&](int64_t begin, int64_t end) {
        for (; begin < end; begin += kPanel) {
          const int64_t n = std::min(kPanel, end - begin);
          double gains[kPanel], biases[kPanel];
          float gain[kPanel], bias[kPanel];
          std::fill_n(gains, n, 0.0);
          std::fill_n(biases, n, 0.0);
          for (int64_t r = 0; r < rows;) {
            std::fill_n(gain, n, 0.0f);
            std::fill_n(bias, n, 0.0f);
            for (const int64_t stop = std::min(rows, r + kRowsInFloat); r < stop; ++r) {
              const int64_t row = r * channels + begin;
              loops.add_grad_parameters(gain, dbias == nullptr ? nullptr : bias, dy + row, x + row,
                                        {.mean = mean == nullptr ? 0 : mean[r], .rstd = rstd[r]},
                                        n);
            }
            for (int64_t i = 0; i < n; ++i) gains[i] += gain[i];
            for (int64_t i = 0; i < n; ++i) biases[i] += bias[i];
          }
          for (int64_t i = 0; i < n; ++i) dgain[begin + i] = static_cast<float>(gains[i]);
          if (dbias == nullptr) continue;
          for (int64_t i = 0; i < n; ++i) dbias[begin + i] = static_cast<float>(biases[i]);
        }
      });
}

}  // namespace muster::kernels
