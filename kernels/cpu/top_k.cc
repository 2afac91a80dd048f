#include "kernels/top_k.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"

namespace muster::kernels {
namespace {

int64_t Grain(const TopKShape& shape) { return std::max<int64_t>(1, (1 << 14) / shape.columns); }

template <bool kLargest>
bool IsBetter(float a, float b) {
  if constexpr (!kLargest) std::swap(a, b);
  return a > b || (std::isnan(a) && !std::isnan(b));
}

// Writes the columns of the chosen elements of a row to `index`, best first. `index` holds the best
// elements so far as a heap, whose top is replaced next. Of equal values, the earlier column is
// better.
template <bool kLargest>
void ChooseOfRow(int32_t* index, const float* x, const TopKShape& shape) {
  const auto comes_first = [x](int32_t a, int32_t b) {
    if (IsBetter<kLargest>(x[a], x[b])) return true;
    return a < b && !IsBetter<kLargest>(x[b], x[a]);
  };
  int32_t* const end = index + shape.chosen;
  for (int64_t i = 0; i < shape.chosen; ++i) index[i] = static_cast<int32_t>(i);
  std::make_heap(index, end, comes_first);
  float worst = x[index[0]];
  for (int64_t column = shape.chosen; column < shape.columns; ++column) {
    if (!IsBetter<kLargest>(x[column], worst)) continue;
    std::pop_heap(index, end, comes_first);
    end[-1] = static_cast<int32_t>(column);
    std::push_heap(index, end, comes_first);
    worst = x[index[0]];
  }
  std::sort_heap(index, end, comes_first);
}

}  // namespace

void TopK(float* values, int32_t* index, const float* x, const TopKShape& s) {
  const auto choose = s.largest ? ChooseOfRow<true> : ChooseOfRow<false>;
  ParallelFor(s.rows, Grain(s), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = x + row * s.columns;
      choose(index + row * s.chosen, from, s);
      for (int64_t i = row * s.chosen; i < (row + 1) * s.chosen; ++i) values[i] = from[index[i]];
    }
  });
}

void TopKGrad(float* dx, const float* dy, const int32_t* index, const TopKShape& s) {
  ParallelFor(s.rows, Grain(s), [=](int64_t begin, int64_t end) {
    std::fill(dx + begin * s.columns, dx + end * s.columns, 0.0f);
    for (int64_t i = begin * s.chosen; i < end * s.chosen; ++i) {
      dx[i / s.chosen * s.columns + index[i]] = dy[i];
    }
  });
}

}  // namespace muster::kernels
