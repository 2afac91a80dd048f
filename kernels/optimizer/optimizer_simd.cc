#include "kernels/optimizer/optimizer_simd.h"

#include "kernels/cpu/conversion_loops.h"
#include "kernels/cpu/vector.h"
#include "kernels/optimizer/gradient_sums.h"

// All operations are correctly rounded and elements are independent, so every vector width gives
// the same bits.
namespace muster::kernels::KERNELS_SIMD {
namespace {

using enum OptimizerRule;

// Clips g. A NaN stays NaN.
void Clip(float* g, const ClipCoefficients& c, int n) {
  if (c.changes_nothing) return;
  Map(
      [c](Vec x) {
        const Vec scaled = c.factor * x;
        const Vec below = scaled > c.limit ? Splat(c.limit) : scaled;
        return below < -c.limit ? Splat(-c.limit) : below;
      },
      n, g, static_cast<const float*>(g));
}

int BlockAt(int64_t i, int64_t n) { return n - i < kBlock ? static_cast<int>(n - i) : kBlock; }

// ---------------------------------------------------------------- update rules

constexpr int Slots(OptimizerRule rule) {
  return rule == kSgd ? 0 : rule == kAdam || rule == kAdamw || rule == kLamb ? 2 : 1;
}

// Moves the averages m and v of the gradient and its square.
inline void MoveMoments(const OptimizerCoefficients& c, Vec g, Vec& m, Vec& v) {
  m = c.first * m + c.first_rest * g;
  v = c.second * v + c.second_rest * g * g;
}

inline Vec LambDirection(const OptimizerCoefficients& c, Vec p, Vec m, Vec v) {
  return m * c.first_scale / (SquareRoot(v) * c.second_scale + c.epsilon) + c.decay * p;
}

// The formulas of OptimizerRule: g gradient, p value, s and v slots.
template <OptimizerRule kRule>
inline void Update(const OptimizerCoefficients& c, Vec g, Vec& p, Vec& s, Vec& v) {
  if constexpr (kRule == kAdamw) {
    p = p * c.decay;
  } else if constexpr (kRule != kLamb) {
    g = g + c.decay * p;
  }
  if constexpr (kRule == kSgd) {
    p = p - c.learning_rate * g;
  } else if constexpr (kRule == kSgdMomentum) {
    s = c.first * s + g;
    p = p - c.learning_rate * s;
  } else if constexpr (kRule == kSgdNesterov) {
    s = c.first * s + g;
    p = p - c.learning_rate * (g + c.first * s);
  } else if constexpr (kRule == kAdam || kRule == kAdamw) {
    MoveMoments(c, g, s, v);
    p = p - c.learning_rate * s / (SquareRoot(v) * c.second_scale + c.epsilon);
  } else if constexpr (kRule == kLamb) {
    MoveMoments(c, g, s, v);
    p = p - c.learning_rate * LambDirection(c, p, s, v);
  } else if constexpr (kRule == kAdagrad) {
    s = s + g * g;
    p = p - c.learning_rate * g / (SquareRoot(s) + c.epsilon);
  } else {
    s = c.second * s + c.second_rest * g * g;
    p = p - c.learning_rate * g / (SquareRoot(s) + c.epsilon);
  }
}

// The form of the gradient that the rule receives.
enum class Input {
  kReady,     // f32, summed and clipped
  kOnlyRank,  // as the only rank sent it; its squares are not added up yet
  kLastRank,  // as the last rank sent it; the sum of the others must be added first
};

// The arrays of one run, starting at some element.
struct Run {
  const void* gradient;
  const float* others;  // only for kLastRank
  const float* p_in;
  float* p_out;
  const float* slots_in[kOptimizerSlotsMax];
  float* slots_out[kOptimizerSlotsMax];
  bool stream_values = false;
  bool stream_slots = false;
};

inline void StorePastCaches(float* p, Vec v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, v);
#elif defined(__AVX2__)
  _mm256_stream_ps(p, v);
#else
  _mm_stream_ps(p, v);
#endif
}

// Copies `bytes` without fetching the lines that are overwritten, because a processor can have only
// about twenty fetches in progress. The string instruction announces that it writes whole lines, so
// they need no fetch. It takes a while to start. Later stores become
// visible after it, like after any store (Intel SDM, "Fast-String Operation and Out-of-Order
// Stores").
void StoreUnfetched(void* to, const void* from, int64_t bytes) {
#if defined(__AVX2__)
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
#else
  __builtin_memcpy(to, from, bytes);
#endif
}

void StreamBlock(float* to, const float* from, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) StorePastCaches(to + i, Load(from + i));
  for (; i < n; ++i) to[i] = from[i];
}

template <bool kStreaming>
inline void Put(float* p, Vec v, bool stream) {
  if (kStreaming && stream) {
    StorePastCaches(p, v);
  } else {
    Store(p, v);
  }
}

template <OptimizerRule kRule, Input kInput, FloatType kType, bool kStreaming>
inline void UpdateGroup(const OptimizerCoefficients& c, const Run& run, int64_t i,
                        Squares& squares) {
  ForGroup([&](int part) {
    const int64_t at = i + part;
    Vec g = LoadAs<kType>(run.gradient, at);
    if constexpr (kInput == Input::kLastRank) g = Load(run.others + at) + g;
    if constexpr (kInput != Input::kReady) squares.Add(part, g);
    Vec p = Load(run.p_in + at), s{}, v{};
    if constexpr (Slots(kRule) > 0) s = Load(run.slots_in[0] + at);
    if constexpr (Slots(kRule) > 1) v = Load(run.slots_in[1] + at);
    Update<kRule>(c, g, p, s, v);
    Put<kStreaming>(run.p_out + at, p, run.stream_values);
    if constexpr (Slots(kRule) > 0) Put<kStreaming>(run.slots_out[0] + at, s, run.stream_slots);
    if constexpr (Slots(kRule) > 1) Put<kStreaming>(run.slots_out[1] + at, v, run.stream_slots);
  });
}

template <OptimizerRule kRule, Input kInput, FloatType kType, bool kStreaming>
__attribute__((noinline)) void UpdateRun(const OptimizerCoefficients& coefficients, const Run& run,
                                         int64_t n, Squares& squares) {
  const OptimizerCoefficients c = coefficients;
  const Run r = run;
  Squares local = squares;
  int64_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    UpdateGroup<kRule, kInput, kType, kStreaming>(c, r, i, local);
  }
  if (i < n) {
    const int64_t rest = n - i, bytes = rest * sizeof(float);
    const Tail g(static_cast<const char*>(r.gradient) + i * BytesOf(kType), rest * BytesOf(kType));
    Tail others(At(r.others, i), bytes), p(r.p_in + i, bytes);
    Tail s(At(r.slots_in[0], i), bytes), v(At(r.slots_in[1], i), bytes);
    const Run tail{.gradient = g.bytes,
                   .others = others.floats(),
                   .p_in = p.floats(),
                   .p_out = p.floats(),
                   .slots_in = {s.floats(), v.floats()},
                   .slots_out = {s.floats(), v.floats()}};
    UpdateGroup<kRule, kInput, kType, false>(c, tail, 0, local);
    p.CopyTo(r.p_out + i, rest);
    s.CopyTo(At(r.slots_out[0], i), rest);
    v.CopyTo(At(r.slots_out[1], i), rest);
  }
  squares = local;
}

template <OptimizerRule kRule, Input kInput, FloatType kType>
void UpdateRun(const OptimizerCoefficients& c, const Run& run, int64_t n, Squares& squares) {
  if (run.stream_values || run.stream_slots) {
    UpdateRun<kRule, kInput, kType, true>(c, run, n, squares);
  } else {
    UpdateRun<kRule, kInput, kType, false>(c, run, n, squares);
  }
}

template <OptimizerRule kRule, Input kInput>
void UpdateRun(const OptimizerCoefficients& c, FloatType type, const Run& run, int64_t n,
               Squares& squares) {
  switch (type) {
    case FloatType::kF32:
      return UpdateRun<kRule, kInput, FloatType::kF32>(c, run, n, squares);
    case FloatType::kBf16:
      return UpdateRun<kRule, kInput, FloatType::kBf16>(c, run, n, squares);
    case FloatType::kF16:
      return UpdateRun<kRule, kInput, FloatType::kF16>(c, run, n, squares);
  }
}

bool IsAligned(const float* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; }

// Returns the arrays of the whole run, without gradients.
Run RunOf(const OptimizerBuffers& b) {
  return {.p_in = b.values_in,
          .p_out = b.values_out,
          .slots_in = {b.slots_in[0], b.slots_in[1]},
          .slots_out = {b.slots_out[0], b.slots_out[1]},
          .stream_values = b.streaming == Streaming::kSlotsAndValues && IsAligned(b.values_out),
          .stream_slots = b.streaming != Streaming::kNothing && IsAligned(b.slots_out[0]) &&
                          IsAligned(b.slots_out[1])};
}

Run From(Run run, int64_t i) {
  run.p_in += i;
  run.p_out += i;
  for (const float*& slot : run.slots_in) slot = At(slot, i);
  for (float*& slot : run.slots_out) slot = At(slot, i);
  return run;
}

void Narrow(const OptimizerBuffers& b, int64_t i, const float* values, int n, bool unfetched) {
  const auto narrow = b.wire_type == FloatType::kBf16 ? kConversionLoops.f32_to_bf16
                                                      : kConversionLoops.f32_to_finite_f16;
  uint16_t* const to = static_cast<uint16_t*>(b.wire_out) + i;
  if (!unfetched) return narrow(to, values, n);
  uint16_t block[kBlock];
  narrow(block, values, n);
  StoreUnfetched(to, block, n * static_cast<int64_t>(sizeof(uint16_t)));
}

// Updates as UpdateUnclipped() does, with a sum along a tree.
template <OptimizerRule kRule>
__attribute__((noinline)) void UpdateAlongTree(const OptimizerCoefficients& c,
                                               const OptimizerBuffers& b, const Run& run, int64_t i,
                                               int n, Squares& squares) {
  for (int at = 0; at < n; at += kTreeBlock) {
    const int count = n - at < kTreeBlock ? n - at : kTreeBlock;
    const OpenSums sums(b.gradients, b.joins, b.ranks, i + at, count);
    Run part = From(run, at);
    part.others = sums.first();
    part.gradient = sums.last().elements;
    UpdateRun<kRule, Input::kLastRank>(c, sums.last().type, part, count, squares);
  }
}

// Updates with elements [i, i + n) of the gradients. Requires: n <= kBlock for three or more ranks,
// or for two ranks if the first is not f32.
template <OptimizerRule kRule>
void UpdateUnclipped(const OptimizerCoefficients& c, const OptimizerBuffers& b, Run run, int64_t i,
                     int64_t n, Squares& squares) {
  const Gradient& last = b.gradients[b.ranks - 1];
  run.gradient = At(last, i);
  if (b.ranks == 1) return UpdateRun<kRule, Input::kOnlyRank>(c, last.type, run, n, squares);
  if (b.joins != nullptr) {
    return UpdateAlongTree<kRule>(c, b, run, i, static_cast<int>(n), squares);
  }
  alignas(64) float block[kBlock];
  run.others = SumOfOthers(block, b.gradients, b.ranks - 1, i, n);
  UpdateRun<kRule, Input::kLastRank>(c, last.type, run, n, squares);
}

template <OptimizerRule kRule>
void UpdateClipped(const OptimizerCoefficients& c, const ClipCoefficients& clip,
                   const OptimizerBuffers& b, Run run, int64_t i, int n, Squares& squares) {
  alignas(64) float g[kBlock];
  SumBlock(g, b.gradients, b.joins, b.ranks, i, n, squares);
  Clip(g, clip, n);
  run.gradient = g;
  UpdateRun<kRule, Input::kReady, FloatType::kF32>(c, run, n, squares);
}

// Updates elements [i, i + n), which are a block. If `unfetched`, stores outgoing values with
// StoreUnfetched(). Values that bypass the caches are rounded for the wire before they are stored.
template <OptimizerRule kRule>
void UpdateBlock(const OptimizerCoefficients& c, const ClipCoefficients& clip,
                 const OptimizerBuffers& b, Run run, int64_t i, int n, bool unfetched,
                 Squares& squares) {
  alignas(64) float values[kBlock];
  const bool stream = b.wire_out != nullptr && run.stream_values;
  const bool copy = b.wire_out == nullptr && unfetched && !run.stream_values;
  if (stream || copy) {
    run.p_out = values;
    run.stream_values = false;
  }
  if (clip.changes_nothing) {
    UpdateUnclipped<kRule>(c, b, run, i, n, squares);
  } else {
    UpdateClipped<kRule>(c, clip, b, run, i, n, squares);
  }
  if (b.wire_out != nullptr) Narrow(b, i, run.p_out, n, unfetched);
  if (stream) StreamBlock(b.values_out + i, values, n);
  if (copy) StoreUnfetched(b.values_out + i, values, n * static_cast<int64_t>(sizeof(float)));
}

template <OptimizerRule kRule>
double ApplyRule(const OptimizerCoefficients& c, const ClipCoefficients& clip,
                 const OptimizerBuffers& b, int64_t n) {
  Squares squares;
  const Run run = RunOf(b);
  const bool nothing_between =
      b.ranks == 1 || (b.ranks == 2 && b.gradients[0].type == FloatType::kF32);
  const bool unfetched = b.outgoing_stores == OutgoingStores::kUnfetched;
  if (nothing_between && clip.changes_nothing && b.wire_out == nullptr && !unfetched) {
    UpdateUnclipped<kRule>(c, b, run, 0, n, squares);
  } else {
    for (int64_t i = 0; i < n; i += kBlock) {
      UpdateBlock<kRule>(c, clip, b, From(run, i), i, BlockAt(i, n), unfetched, squares);
    }
  }
  if (run.stream_values || run.stream_slots) _mm_sfence();
  return squares.Total();
}

}  // namespace

double Apply(OptimizerRule rule, const OptimizerCoefficients& coefficients,
             const ClipCoefficients& clip, const OptimizerBuffers& buffers, int64_t n) {
  switch (rule) {
    case kSgd:
      return ApplyRule<kSgd>(coefficients, clip, buffers, n);
    case kSgdMomentum:
      return ApplyRule<kSgdMomentum>(coefficients, clip, buffers, n);
    case kSgdNesterov:
      return ApplyRule<kSgdNesterov>(coefficients, clip, buffers, n);
    case kAdam:
      return ApplyRule<kAdam>(coefficients, clip, buffers, n);
    case kAdamw:
      return ApplyRule<kAdamw>(coefficients, clip, buffers, n);
    case kAdagrad:
      return ApplyRule<kAdagrad>(coefficients, clip, buffers, n);
    case kRmsprop:
      return ApplyRule<kRmsprop>(coefficients, clip, buffers, n);
    case kLamb:
      return ApplyRule<kLamb>(coefficients, clip, buffers, n);
  }
  return 0;
}

DirectionSquares Measure(OptimizerRule rule, const OptimizerCoefficients& coefficients,
                         const ClipCoefficients& clip, const OptimizerBuffers& b, int64_t n) {
  Squares values, directions, unused;
  alignas(64) float g[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int count = BlockAt(i, n);
    SumBlock(g, b.gradients, b.joins, b.ranks, i, count, unused);
    Clip(g, clip, count);
    if (rule == kLamb) {
      Map(
          [c = coefficients](Vec g, Vec p, Vec m, Vec v) {
            MoveMoments(c, g, m, v);
            return LambDirection(c, p, m, v);
          },
          count, g, static_cast<const float*>(g), b.values_in + i, b.slots_in[0] + i,
          b.slots_in[1] + i);
    }
    alignas(64) float copy[kBlock];
    Accumulate<FloatType::kF32, false, true>(copy, nullptr, b.values_in + i, count, values);
    Accumulate<FloatType::kF32, false, true>(copy, nullptr, g, count, directions);
  }
  return {.values = values.Total(), .direction = directions.Total()};
}

double Sum(float* out, const Gradient* gradients, const uint8_t* joins, int ranks, int64_t n) {
  Squares squares;
  alignas(64) float sum[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int count = BlockAt(i, n);
    SumBlock(sum, gradients, joins, ranks, i, count, squares);
    __builtin_memcpy(out + i, sum, count * sizeof(float));
  }
  return squares.Total();
}

double ApplyToStatistic(float* value_out, const float* value_in, const Gradient* contributions,
                        const uint8_t* joins, int ranks, float momentum, int64_t n) {
  Squares squares;
  alignas(64) float sum[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int count = BlockAt(i, n);
    SumBlock(sum, contributions, joins, ranks, i, count, squares);
    Map([momentum](Vec value, Vec target) { return value + momentum * (target - value); }, count,
        value_out + i, value_in + i, static_cast<const float*>(sum));
  }
  return squares.Total();
}

}  // namespace muster::kernels::KERNELS_SIMD
