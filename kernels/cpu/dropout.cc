#include "kernels/dropout.h"

#include <algorithm>

#include "kernels/cpu/dropout_loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_level.h"
#include "kernels/philox.h"

namespace muster::kernels {
namespace {

constexpr int64_t kGrain = 1 << 12;  // a multiple of 4, the words of one Philox call

// The function of an element, without the tensors.
class Mask {
 public:
  Mask(float rate, const DropoutKey& key)
      : loop_(ForThisProcessor(baseline::kDropoutLoops, avx2::kDropoutLoops, avx512::kDropoutLoops)
                  .dropout),
        threshold_(DropoutThreshold(rate)),
        factor_(1.0f / (1.0f - rate)),
        seed_(key.seed),
        stream_(DropoutStream(key)) {}

  // Computes the elements before the first one that begins a Philox call. Returns their number.
  int64_t Head(float* y, const float* x, int64_t n, int64_t first_element) const {
    const int64_t head = std::min(n, (4 - first_element % 4) % 4);
    for (int64_t i = 0; i < head; ++i) {
      const int64_t element = first_element + i;
      const uint32_t word = RandomWords(seed_, stream_, element / 4)[element % 4];
      y[i] = word >> 8 >= threshold_ ? x[i] * factor_ : 0.0f;
    }
    return head;
  }

  // Requires: `first_element` is a multiple of 4.
  void Rest(float* y, const float* x, int64_t n, int64_t first_element) const {
    loop_(y, x, n, seed_, stream_, first_element / 4, threshold_, factor_);
  }

 private:
  decltype(DropoutLoops::dropout) loop_;
  uint32_t threshold_;
  float factor_;
  uint64_t seed_;
  uint64_t stream_;
};

}  // namespace

void Dropout(float* y, const float* x, int64_t n, int64_t first_element, float rate,
             const DropoutKey& key) {
  const Mask mask(rate, key);
  const int64_t head = mask.Head(y, x, n, first_element);
  ParallelFor(n - head, kGrain, [=](int64_t begin, int64_t end) {
    mask.Rest(y + head + begin, x + head + begin, end - begin, first_element + head + begin);
  });
}

void DropoutOfPart(float* y, const float* x, int64_t rows, const DropoutPart& part,
                   int64_t first_element, float rate, const DropoutKey& key) {
  const Mask mask(rate, key);
  const int64_t n = part.columns;
  ParallelFor(rows, std::max<int64_t>(1, kGrain / n), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t element = first_element + row * part.whole + part.first;
      const int64_t head = mask.Head(y + row * n, x + row * n, n, element);
      mask.Rest(y + row * n + head, x + row * n + head, n - head, element + head);
    }
  });
}

}  // namespace muster::kernels
