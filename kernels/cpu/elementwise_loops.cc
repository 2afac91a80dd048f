#include "kernels/cpu/elementwise_loops.h"

#include "kernels/cpu/vector.h"

namespace muster::kernels::KERNELS_SIMD {
namespace {

struct Stream {
  const float* data;

  Vec At(int64_t i) const { return Load(data + i); }
  Vec LastAt(int64_t i, int64_t n) const { return LoadFirst(data + i, n - i); }
};

struct Repeat {
  Vec value;

  Vec At(int64_t) const { return value; }
  Vec LastAt(int64_t, int64_t) const { return value; }
};

template <typename F, typename... S>
void Run(F f, float* y, int64_t n, S... sources) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(y + i, f(sources.At(i)...));
  if (i < n) StoreFirst(y + i, f(sources.LastAt(i, n)...), n - i);
}

// Returns *x in every lane. Copies bits, because *x may be an integer, which float arithmetic would
// change.
Repeat RepeatOf(const float* x) {
  uint32_t bits;
  __builtin_memcpy(&bits, x, sizeof(bits));
  return {(Vec)(bits - BitsVec{})};
}

// Chooses Stream or Repeat for each source in turn.
template <int kSources, typename F, typename... S>
void Bind(F f, float* y, const float* const* sources, unsigned repeats, int64_t n, S... bound) {
  constexpr int kBound = sizeof...(S);
  if constexpr (kBound == kSources) {
    Run(f, y, n, bound...);
  } else if (repeats >> kBound & 1) {
    Bind<kSources>(f, y, sources, repeats, n, bound..., RepeatOf(sources[kBound]));
  } else {
    Bind<kSources>(f, y, sources, repeats, n, bound..., Stream{sources[kBound]});
  }
}

template <Vec (*F)(Vec, Vec)>
void Each2(float* y, const float* const* sources, unsigned repeats, int64_t n) {
  Bind<2>([](Vec a, Vec b) { return F(a, b); }, y, sources, repeats, n);
}

template <Vec (*F)(Vec, Vec, Vec)>
void Each3(float* y, const float* const* sources, unsigned repeats, int64_t n) {
  Bind<3>([](Vec a, Vec b, Vec c) { return F(a, b, c); }, y, sources, repeats, n);
}

void Copy(float* y, const float* const* sources, unsigned repeats, int64_t n) {
  if (repeats == 0) {
    __builtin_memcpy(y, sources[0], n * sizeof(float));
    return;
  }
  Run([](Vec v) { return v; }, y, n, RepeatOf(sources[0]));
}

Vec Add(Vec a, Vec b) { return a + b; }
Vec Sub(Vec a, Vec b) { return a - b; }
Vec Mul(Vec a, Vec b) { return a * b; }
Vec Div(Vec a, Vec b) { return a / b; }

// Computes a to the power of b by scalar powf, because float Log and Exp would lose digits for
// large results.
inline Vec Power(Vec a, Vec b) {
  Vec y;
  for (int i = 0; i < kLanes; ++i) y[i] = __builtin_powf(a[i], b[i]);
  return y;
}

void Pow(float* y, const float* const* sources, unsigned repeats, int64_t n) {
  const float exponent = repeats & 2 ? sources[1][0] : 0.0f;
  if (exponent == 2.0f) {
    Bind<1>([](Vec a) { return a * a; }, y, sources, repeats, n);
  } else if (exponent == 3.0f) {
    Bind<1>([](Vec a) { return a * a * a; }, y, sources, repeats, n);
  } else {
    Bind<2>(Power, y, sources, repeats, n);
  }
}

Vec Where(Vec condition, Vec a, Vec b) { return (IntVec)condition != 0 ? a : b; }
Vec WhereGradA(Vec dy, Vec condition) { return (IntVec)condition != 0 ? dy : Vec{}; }
Vec WhereGradB(Vec dy, Vec condition) { return (IntVec)condition != 0 ? Vec{} : dy; }
Vec DivGradB(Vec dy, Vec a, Vec b) { return -dy * (a / b) / b; }

void PowGradA(float* y, const float* const* sources, unsigned repeats, int64_t n) {
  const float exponent = repeats & 4 ? sources[2][0] : 0.0f;
  if (exponent == 2.0f) {
    Bind<2>([](Vec dy, Vec a) { return 2.0f * dy * a; }, y, sources, repeats, n);
  } else if (exponent == 3.0f) {
    Bind<2>([](Vec dy, Vec a) { return 3.0f * dy * (a * a); }, y, sources, repeats, n);
  } else {
    // The derivative is 0 for an exponent of 0, for any a.
    Bind<3>([](Vec dy, Vec a, Vec b) { return b == 0.0f ? Vec{} : dy * b * Power(a, b - 1.0f); }, y,
            sources, repeats, n);
  }
}

Vec PowGradB(Vec dy, Vec a, Vec b) {
  return ((a == 0.0f) & (b >= 0.0f)) ? Vec{} : dy * Power(a, b) * Log(a);
}

Vec Equal(Vec a, Vec b) { return a == b ? Splat(1.0f) : Vec{}; }
Vec IfEqual(Vec a, Vec b, Vec c) { return a == b ? c : Vec{}; }

Vec IsEqual(Vec a, Vec b) { return (Vec)((a == b) & 1); }
Vec IsLess(Vec a, Vec b) { return (Vec)((a < b) & 1); }
Vec IsLessOrEqual(Vec a, Vec b) { return (Vec)((a <= b) & 1); }

template <Vec (*F)(Vec)>
void Each1(float* y, const float* const* sources, unsigned repeats, int64_t n) {
  Bind<1>([](Vec a) { return F(a); }, y, sources, repeats, n);
}

// Computes y[i] = F(a[i], b[i]) for integers that are stored as bits in the vectors.
template <IntVec (*F)(IntVec, IntVec)>
void EachInteger(float* y, const float* const* sources, unsigned repeats, int64_t n) {
  Bind<2>([](Vec a, Vec b) { return (Vec)F((IntVec)a, (IntVec)b); }, y, sources, repeats, n);
}

IntVec IsEqual(IntVec a, IntVec b) { return (a == b) & 1; }
IntVec IsLess(IntVec a, IntVec b) { return (a < b) & 1; }
IntVec IsLessOrEqual(IntVec a, IntVec b) { return (a <= b) & 1; }

// Integers use unsigned arithmetic, because it wraps on overflow.
IntVec Add(IntVec a, IntVec b) { return (IntVec)((BitsVec)a + (BitsVec)b); }
IntVec Sub(IntVec a, IntVec b) { return (IntVec)((BitsVec)a - (BitsVec)b); }
IntVec Mul(IntVec a, IntVec b) { return (IntVec)((BitsVec)a * (BitsVec)b); }
IntVec Minimum(IntVec a, IntVec b) { return a < b ? a : b; }
IntVec Maximum(IntVec a, IntVec b) { return a > b ? a : b; }
Vec AbsOfIntegers(Vec x) { return (Vec)Maximum((IntVec)x, Sub(IntVec{}, (IntVec)x)); }

// Returns a / b, or 0 where b is 0. Handles divisors of 0 and -1 separately, because the processor
// may trap on them.
IntVec Div(IntVec a, IntVec b) {
  const IntVec negative = Sub(IntVec{}, a);
  for (int i = 0; i < kLanes; ++i) a[i] = b[i] == 0 ? 0 : b[i] == -1 ? negative[i] : a[i] / b[i];
  return a;
}
IntVec Mod(IntVec a, IntVec b) {
  for (int i = 0; i < kLanes; ++i) {
    const int32_t rest = b[i] == 0 || b[i] == -1 ? 0 : a[i] % b[i];
    a[i] = rest != 0 && (rest < 0) != (b[i] < 0) ? rest + b[i] : rest;
  }
  return a;
}

Vec Mod(Vec a, Vec b) {
  for (int i = 0; i < kLanes; ++i) {
    const float rest = __builtin_fmodf(a[i], b[i]);
    a[i] = rest != 0.0f && (rest < 0.0f) != (b[i] < 0.0f) ? rest + b[i] : rest;
  }
  return a;
}

// Return NaN if either operand is NaN.
inline Vec Maximum(Vec a, Vec b) { return ((a > b) | (a != a)) ? a : b; }
inline Vec Minimum(Vec a, Vec b) { return ((a < b) | (a != a)) ? a : b; }

Vec MaximumGrad(Vec dy, Vec a, Vec b) { return a < b ? Vec{} : a == b ? 0.5f * dy : dy; }
Vec MinimumGrad(Vec dy, Vec a, Vec b) { return a > b ? Vec{} : a == b ? 0.5f * dy : dy; }

double Sum(const float* x, int64_t n) {
  return Reduce([](Vec v) { return v; }, n, x);
}

double MaxOf(const float* x, int64_t n) {
  Vec max = Splat(x[0]);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) max = Maximum(max, Load(x + i));
  if (i < n) max = Maximum(max, LoadFirst(x + i, n - i, x[0]));
  float largest = max[0];
  for (int lane = 1; lane < kLanes; ++lane) {
    largest = largest > max[lane] || largest != largest ? largest : max[lane];
  }
  return largest;
}

template <Vec (*Combine)(Vec, Vec)>
void CombineRows(float* to, const float* const* rows, int64_t n) {
  Map(
      [](Vec sum, Vec a, Vec b, Vec c, Vec d, Vec e, Vec f, Vec g, Vec h) {
        return Combine(sum, Combine(Combine(Combine(a, b), Combine(c, d)),
                                    Combine(Combine(e, f), Combine(g, h))));
      },
      n, to, static_cast<const float*>(to), rows[0], rows[1], rows[2], rows[3], rows[4], rows[5],
      rows[6], rows[7]);
}

}  // namespace

extern const ElementwiseLoops kElementwiseLoops;
const ElementwiseLoops kElementwiseLoops = {
    .copy = Copy,
    .add = Each2<Add>,
    .sub = Each2<Sub>,
    .mul = Each2<Mul>,
    .div = Each2<Div>,
    .pow = Pow,
    .minimum = Each2<Minimum>,
    .maximum = Each2<Maximum>,
    .mod = Each2<Mod>,
    .minimum_grad = Each3<MinimumGrad>,
    .maximum_grad = Each3<MaximumGrad>,
    .where = Each3<Where>,
    .where_grad_a = Each2<WhereGradA>,
    .where_grad_b = Each2<WhereGradB>,
    .div_grad_b = Each3<DivGradB>,
    .pow_grad_a = PowGradA,
    .pow_grad_b = Each3<PowGradB>,
    .equal = Each2<Equal>,
    .if_equal = Each3<IfEqual>,
    .is_equal = Each2<IsEqual>,
    .is_less = Each2<IsLess>,
    .is_less_or_equal = Each2<IsLessOrEqual>,
    .is_equal_i32 = EachInteger<IsEqual>,
    .is_less_i32 = EachInteger<IsLess>,
    .is_less_or_equal_i32 = EachInteger<IsLessOrEqual>,
    .add_i32 = EachInteger<Add>,
    .sub_i32 = EachInteger<Sub>,
    .mul_i32 = EachInteger<Mul>,
    .div_i32 = EachInteger<Div>,
    .mod_i32 = EachInteger<Mod>,
    .minimum_i32 = EachInteger<Minimum>,
    .maximum_i32 = EachInteger<Maximum>,
    .abs_i32 = Each1<AbsOfIntegers>,
    .sum = Sum,
    .max = MaxOf,
    .add_rows = CombineRows<Add>,
    .max_rows = CombineRows<Maximum>,
};

}  // namespace muster::kernels::KERNELS_SIMD
