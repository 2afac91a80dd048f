#include "lib/codec/codec_loops.h"

#include "kernels/cpu/vector.h"

// Loops that the compiler does not vectorise are written with vectors, in groups of 16 elements for
// any register width.
namespace muster::kernels::KERNELS_SIMD {
namespace {

constexpr int kGroup = 16;

inline IntVec Magnitudes(Vec v) { return (IntVec)((BitsVec)v & 0x7FFFFFFFu); }

inline uint32_t MagnitudeOf(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits & 0x7FFFFFFFu;
}

// Returns the sign bits of v: bit i is that of lane i.
inline uint32_t SignMask(Vec v) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)v);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps(v));
#else
  return static_cast<uint32_t>(_mm_movemask_ps(v));
#endif
}

// Returns the sign bits of f(x) for 16 elements.
template <typename F>
inline uint32_t GroupMask(const float* x, F f) {
  uint32_t mask = 0;
  for (int i = 0; i < kGroup; i += kLanes) mask |= SignMask(f(Load(x + i))) << i;
  return mask;
}

uint32_t Accumulate(float* residual, const float* gradient, int64_t n) {
  IntVec most{};
  auto note = [&](Vec v) {
    const IntVec magnitudes = Magnitudes(v);
    most = magnitudes > most ? magnitudes : most;
    return v;
  };
  Map([&](Vec r, Vec g) { return note(r + g); }, n, residual, static_cast<const float*>(residual),
      gradient);
  int32_t all = 0;
  for (int i = 0; i < kLanes; ++i) all = most[i] > all ? most[i] : all;
  return static_cast<uint32_t>(all);
}

void Quantise(int8_t* __restrict codes, float* __restrict x, float inverse, float scale,
              int64_t n) {
  constexpr float kRounder = 0x1.8p23f;  // at this size a float's last place is 1
  for (int64_t i = 0; i < n; ++i) {
    const float code = (x[i] * inverse + kRounder) - kRounder;
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(code));
    x[i] -= scale * code;
  }
}

bool Dequantise(float* __restrict y, const int8_t* __restrict codes, float scale, int64_t n) {
  int8_t least = 0;
  for (int64_t i = 0; i < n; ++i) least = codes[i] < least ? codes[i] : least;
  for (int64_t i = 0; i < n; ++i) y[i] = scale * static_cast<float>(codes[i]);
  return least >= -127;
}

SignSums SumSigns(const float* x, int64_t n) {
  Vec positive{}, negative{};
  IntVec negatives{};
  auto add = [&](Vec v) {
    const IntVec is_negative = (IntVec)v >> 31;
    positive += (Vec)((IntVec)v & ~is_negative);
    negative += (Vec)((IntVec)v & is_negative);
    negatives -= is_negative;
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) add(Load(x + i));
  if (i < n) add(LoadFirst(x + i, n - i));
  int64_t count = 0;
  for (int lane = 0; lane < kLanes; ++lane) count += negatives[lane];
  return {.positive = SumLanes(positive), .negative = SumLanes(negative), .negatives = count};
}

void PackSigns(uint8_t* bits, float* x, float positive, float negative, int64_t n) {
  const Vec positives = Splat(positive), negatives = Splat(negative);
  int64_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    const uint16_t mask = static_cast<uint16_t>(GroupMask(x + i, [](Vec v) { return v; }));
    __builtin_memcpy(bits + i / 8, &mask, sizeof(mask));
  }
  for (; i < n; ++i) {
    if (i % 8 == 0) bits[i / 8] = 0;
    bits[i / 8] |= static_cast<uint8_t>(__builtin_signbit(x[i]) != 0) << (i % 8);
  }
  Map([=](Vec v) { return v - ((IntVec)v < 0 ? negatives : positives); }, n, x,
      static_cast<const float*>(x));
}

void UnpackSigns(float* y, const uint8_t* bits, float positive, float negative, int64_t n) {
  const Vec positives = Splat(positive), negatives = Splat(negative);
  IntVec lane_bit;
  for (int lane = 0; lane < kLanes; ++lane) lane_bit[lane] = 1 << lane;
  int64_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    uint16_t mask;
    __builtin_memcpy(&mask, bits + i / 8, sizeof(mask));
    for (int part = 0; part < kGroup; part += kLanes) {
      const IntVec is_negative = (IntVec{} + (mask >> part)) & lane_bit;
      Store(y + i + part, is_negative != 0 ? negatives : positives);
    }
  }
  for (; i < n; ++i) y[i] = bits[i / 8] >> (i % 8) & 1 ? negative : positive;
}

// Calls hit(i) in order for every element with a magnitude of at least `floor`, until it returns
// false.
template <typename F>
inline void ForEachAtLeast(const float* x, uint32_t floor, int64_t n, F hit) {
  const int32_t signed_floor = static_cast<int32_t>(floor);
  int64_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    uint32_t mask =
        GroupMask(x + i, [=](Vec v) { return (Vec)(Magnitudes(v) >= (IntVec{} + signed_floor)); });
    for (; mask != 0; mask &= mask - 1) {
      if (!hit(i + __builtin_ctz(mask))) return;
    }
  }
  for (; i < n; ++i) {
    if (MagnitudeOf(x[i]) >= floor && !hit(i)) return;
  }
}

int64_t CollectMagnitudes(uint32_t* magnitudes, const float* x, uint32_t floor, int64_t capacity,
                          int64_t n) {
  int64_t count = 0;
  ForEachAtLeast(x, floor, n, [&](int64_t i) {
    if (count < capacity) magnitudes[count] = MagnitudeOf(x[i]);
    return count++ < capacity;
  });
  return count;
}

int64_t SelectIndices(uint32_t* indices, const float* x, uint32_t threshold, int64_t ties,
                      int64_t n) {
  int64_t count = 0;
  ForEachAtLeast(x, threshold, n, [&](int64_t i) {
    if (MagnitudeOf(x[i]) > threshold || ties-- > 0) {
      indices[count++] = static_cast<uint32_t>(i);
    }
    return true;
  });
  return count;
}

double Dot(const float* a, const float* b, int64_t n) {
  return Reduce([](Vec u, Vec v) { return u * v; }, n, a, b);
}

void AddScaled(float* y, const float* x, float factor, int64_t n) {
  Map([factor](Vec u, Vec v) { return u + factor * v; }, n, y, static_cast<const float*>(y), x);
}

constexpr int kTogether = 4;  // factors that share a load of x

// Calls four(c) for groups of kTogether numbers in [0, rank), then one(c) for each of the others.
template <typename Four, typename One>
inline void InFours(int rank, Four four, One one) {
  int c = 0;
  for (; c + kTogether <= rank; c += kTogether) four(c);
  for (; c < rank; ++c) one(c);
}

void Multiply(float* products, const float* x, const float* factors, int64_t stride, int rank,
              int64_t n) {
  auto dots = [=]<int kCount>(int c) {
    Vec sums[kCount] = {};
    auto add = [&](Vec v, auto load, int64_t j) {
      for (int k = 0; k < kCount; ++k) sums[k] += v * load(factors + (c + k) * stride + j);
    };
    int64_t j = 0;
    for (; j + kLanes <= n; j += kLanes)
      add(
          Load(x + j), [](const float* p) { return Load(p); }, j);
    if (j < n) {
      const int64_t rest = n - j;
      add(
          LoadFirst(x + j, rest), [=](const float* p) { return LoadFirst(p, rest); }, j);
    }
    for (int k = 0; k < kCount; ++k) products[c + k] = SumLanes(sums[k]);
  };
  InFours(
      rank, [&](int c) { dots.template operator()<kTogether>(c); },
      [&](int c) { dots.template operator()<1>(c); });
}

void AddOuter(float* factors, const float* x, const float* weights, int64_t stride, int rank,
              int64_t n) {
  for (int c = 0; c < rank; ++c) AddScaled(factors + c * stride, x, weights[c], n);
}

// Calls f(y[j], the combination). Adds in the order of c, so that every caller gets the same bits.
template <typename F>
inline void Combined(float* y, const float* weights, const float* factors, int64_t stride, int rank,
                     int64_t n, F f) {
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    Vec sum{};
    for (int c = 0; c < rank; ++c) sum += weights[c] * Load(factors + c * stride + j);
    Store(y + j, f(Load(y + j), sum));
  }
  if (j == n) return;
  Vec sum{};
  for (int c = 0; c < rank; ++c) sum += weights[c] * LoadFirst(factors + c * stride + j, n - j);
  StoreFirst(y + j, f(LoadFirst(y + j, n - j), sum), n - j);
}

void Combine(float* y, const float* weights, const float* factors, int64_t stride, int rank,
             int64_t n) {
  Combined(y, weights, factors, stride, rank, n, [](Vec, Vec sum) { return sum; });
}

void SubtractCombined(float* y, const float* weights, const float* factors, int64_t stride,
                      int rank, int64_t n) {
  Combined(y, weights, factors, stride, rank, n, [](Vec v, Vec sum) { return v - sum; });
}

}  // namespace

extern const CodecLoops kCodecLoops;
const CodecLoops kCodecLoops = {
    .accumulate = Accumulate,
    .quantise = Quantise,
    .dequantise = Dequantise,
    .sum_signs = SumSigns,
    .pack_signs = PackSigns,
    .unpack_signs = UnpackSigns,
    .collect_magnitudes = CollectMagnitudes,
    .select_indices = SelectIndices,
    .dot = Dot,
    .add_scaled = AddScaled,
    .multiply = Multiply,
    .add_outer = AddOuter,
    .combine = Combine,
    .subtract_combined = SubtractCombined,
};

}  // namespace muster::kernels::KERNELS_SIMD
