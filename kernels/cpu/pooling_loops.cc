#include "kernels/cpu/pooling_loops.h"

#include <cstdint>

#include "kernels/cpu/vector.h"

namespace muster::kernels::KERNELS_SIMD {
namespace {

// A vector of channels, or one channel (Scalars). The same code serves both.
struct Vectors {
  using Value = Vec;
  using Index = IntVec;
  typedef uint16_t State __attribute__((vector_size(kLanes * sizeof(uint16_t))));

  static Index Both(Index a, Index b) { return a & b; }
  static Index Not(Index a) { return ~a; }
  static Index SplatIndex(int32_t i) { return Index{} + i; }
  static void StoreState(uint16_t* p, Index i) {
    const State state = __builtin_convertvector(i, State);
    __builtin_memcpy(p, &state, sizeof(state));
  }
  static Index LoadState(const uint16_t* p) {
    State state;
    __builtin_memcpy(&state, p, sizeof(state));
    return __builtin_convertvector(state, Index);
  }
};

struct Scalars {
  using Value = float;
  using Index = int32_t;

  static bool Both(bool a, bool b) { return a && b; }
  static bool Not(bool a) { return !a; }
  static Index SplatIndex(int32_t i) { return i; }
  static void StoreState(uint16_t* p, Index i) { *p = static_cast<uint16_t>(i); }
  static Index LoadState(const uint16_t* p) { return *p; }
};

template <typename Value>
inline Value Get(const float* p) {
  Value v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

template <typename Value>
inline void Put(float* p, Value v) {
  __builtin_memcpy(p, &v, sizeof(v));
}

struct Range {
  int64_t begin;
  int64_t end;
};

inline Range Clip(int64_t begin, int64_t end, int64_t low, int64_t high) {
  return {begin < low ? low : begin, end > high ? high : end};
}

// Returns the range of the taps that are inside the image. `skipped` is the number of taps before
// it.
inline Range ClipTaps(int64_t begin, int64_t taps, int64_t step, int64_t high, int64_t& skipped) {
  const int64_t end = begin + (taps - 1) * step + 1;
  for (skipped = 0; begin < 0; ++skipped) begin += step;
  return {begin, end > high ? high : end};
}

// The part of an output's window that is inside the image. The usual case, without dilations, pays
// nothing for them.
template <bool kDilated>
struct Window {
  Range rows;
  Range columns;
  int64_t top;  // top of the whole window
  int64_t left;
  int64_t rows_before = 0;  // taps before the image, for a window with dilations
  int64_t columns_before = 0;

  Window(const PoolWindows& w, int64_t row, int64_t column)
      : top(row * w.strides[0] - w.padding[0]), left(column * w.strides[1] - w.padding[1]) {
    if constexpr (kDilated) {
      rows = ClipTaps(top, w.kernel[0], w.dilations[0], w.height, rows_before);
      columns = ClipTaps(left, w.kernel[1], w.dilations[1], w.width, columns_before);
    } else {
      rows = Clip(top, top + w.kernel[0], 0, w.height);
      columns = Clip(left, left + w.kernel[1], 0, w.width);
    }
  }

  // Returns the position of the first pixel in the window.
  int32_t FirstPlace(const PoolWindows& w) const {
    if constexpr (kDilated) {
      return static_cast<int32_t>(rows_before * w.kernel[1] + columns_before);
    } else {
      return static_cast<int32_t>((rows.begin - top) * w.kernel[1] + (columns.begin - left));
    }
  }

  // Returns the factor of an average, which has no dilations.
  float Share(const PoolWindows& w) const {
    Range r = rows, c = columns;
    if (w.counts_padding) {
      r = Clip(top, top + w.kernel[0], -w.padding[0], w.height + w.padding[2]);
      c = Clip(left, left + w.kernel[1], -w.padding[1], w.width + w.padding[3]);
    }
    return 1.0f / static_cast<float>((r.end - r.begin) * (c.end - c.begin));
  }

  // Calls f(pixel of x, position in the window).
  template <typename F>
  void ForEach(const PoolWindows& w, F f) const {
    if constexpr (kDilated) {
      int32_t row_place = FirstPlace(w);
      for (int64_t r = rows.begin; r < rows.end; r += w.dilations[0]) {
        int32_t place = row_place;
        for (int64_t c = columns.begin; c < columns.end; c += w.dilations[1]) {
          f(r * w.width + c, place++);
        }
        row_place += static_cast<int32_t>(w.kernel[1]);
      }
    } else {
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        for (int64_t c = columns.begin; c < columns.end; ++c) {
          f(r * w.width + c, static_cast<int32_t>((r - top) * w.kernel[1] + (c - left)));
        }
      }
    }
  }
};

bool IsDilated(const PoolWindows& w) { return w.dilations[0] != 1 || w.dilations[1] != 1; }

// Calls f(Vectors or Scalars, lane, window, pixel of y).
template <bool kDilated, typename F>
inline void ForEachOutput(const PoolWindows& w, F f) {
  for (int64_t row = 0, out = 0; row < w.output_height; ++row) {
    for (int64_t column = 0; column < w.output_width; ++column, ++out) {
      const Window<kDilated> window(w, row, column);
      int64_t lane = 0;
      for (; lane + kLanes <= w.lanes; lane += kLanes) f(Vectors(), lane, window, out);
      for (; lane < w.lanes; ++lane) f(Scalars(), lane, window, out);
    }
  }
}

void Clear(float* dx, const PoolWindows& w) {
  const int64_t n = w.height * w.width * w.lanes;
  for (int64_t i = 0; i < n; ++i) dx[i] = 0;
}

template <bool kDilated>
void MaxOf(float* y, uint16_t* state, const float* x, const PoolWindows& w) {
  ForEachOutput<kDilated>(w, [&](auto kind, int64_t lane, const auto& window, int64_t out) {
    using Kind = decltype(kind);
    using Value = typename Kind::Value;
    Value best =
        Get<Value>(x + (window.rows.begin * w.width + window.columns.begin) * w.lanes + lane);
    auto where = Kind::SplatIndex(window.FirstPlace(w));
    window.ForEach(w, [&](int64_t pixel, int32_t place) {
      const Value v = Get<Value>(x + pixel * w.lanes + lane);
      const auto better = Kind::Both(Kind::Not(v <= best), best == best);
      best = better ? v : best;
      where = better ? Kind::SplatIndex(place) : where;
    });
    Put(y + out * w.lanes + lane, best);
    Kind::StoreState(state + out * w.lanes + lane, where);
  });
}

template <bool kDilated>
void MaxGradOf(float* dx, const float* dy, const uint16_t* state, const PoolWindows& w) {
  Clear(dx, w);
  ForEachOutput<kDilated>(w, [&](auto kind, int64_t lane, const auto& window, int64_t out) {
    using Kind = decltype(kind);
    using Value = typename Kind::Value;
    const Value d = Get<Value>(dy + out * w.lanes + lane);
    const auto where = Kind::LoadState(state + out * w.lanes + lane);
    window.ForEach(w, [&](int64_t pixel, int32_t place) {
      float* p = dx + pixel * w.lanes + lane;
      Put(p, Get<Value>(p) + (where == Kind::SplatIndex(place) ? d : Value{}));
    });
  });
}

void Max(float* y, uint16_t* state, const float* x, const PoolWindows& w) {
  (IsDilated(w) ? MaxOf<true> : MaxOf<false>)(y, state, x, w);
}

void MaxGrad(float* dx, const float* dy, const uint16_t* state, const PoolWindows& w) {
  (IsDilated(w) ? MaxGradOf<true> : MaxGradOf<false>)(dx, dy, state, w);
}

void Average(float* y, const float* x, const PoolWindows& w) {
  ForEachOutput<false>(w, [&](auto kind, int64_t lane, const auto& window, int64_t out) {
    using Value = typename decltype(kind)::Value;
    Value sum{};
    window.ForEach(w,
                   [&](int64_t pixel, int32_t) { sum += Get<Value>(x + pixel * w.lanes + lane); });
    Put(y + out * w.lanes + lane, sum * window.Share(w));
  });
}

void AverageGrad(float* dx, const float* dy, const PoolWindows& w) {
  Clear(dx, w);
  ForEachOutput<false>(w, [&](auto kind, int64_t lane, const auto& window, int64_t out) {
    using Value = typename decltype(kind)::Value;
    const Value d = Get<Value>(dy + out * w.lanes + lane) * window.Share(w);
    window.ForEach(w, [&](int64_t pixel, int32_t) {
      float* p = dx + pixel * w.lanes + lane;
      Put(p, Get<Value>(p) + d);
    });
  });
}

}  // namespace

extern const PoolingLoops kPoolingLoops;
const PoolingLoops kPoolingLoops = {
    .max = Max,
    .max_grad = MaxGrad,
    .average = Average,
    .average_grad = AverageGrad,
};

}  // namespace muster::kernels::KERNELS_SIMD
