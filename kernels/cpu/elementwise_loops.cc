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

// Chooses Stream or Repeat for each source in turn.
template <int kSources, typename F, typename... S>
void Bind(F f, float* y, const float* const* sources, unsigned repeats, int64_t n, S... bound) {
  constexpr int kBound = sizeof...(S);
  if constexpr (kBound == kSources) {
    Run(f, y, n, bound...);
  } else if (repeats >> kBound & 1) {
    Bind<kSources>(f, y, sources, repeats, n, bound..., Repeat{Splat(sources[kBound][0])});
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

// Bits: a number that is no float must not be computed with.
void Copy(float* y, const float* const* sources, unsigned repeats, int64_t n) {
  if (repeats == 0) {
    __builtin_memcpy(y, sources[0], n * sizeof(float));
    return;
  }
  uint32_t bits;
  __builtin_memcpy(&bits, sources[0], sizeof(bits));
  Run([](Vec v) { return v; }, y, n, Repeat{(Vec)(bits - BitsVec{})});
}

Vec Add(Vec a, Vec b) { return a + b; }
Vec Sub(Vec a, Vec b) { return a - b; }
Vec Mul(Vec a, Vec b) { return a * b; }
Vec Div(Vec a, Vec b) { return a / b; }

// Log and Exp of floats would lose digits for large results.
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
    // 0 for an exponent of 0, whatever a is.
    Bind<3>([](Vec dy, Vec a, Vec b) { return b == 0.0f ? Vec{} : dy * b * Power(a, b - 1.0f); }, y,
            sources, repeats, n);
  }
}

Vec PowGradB(Vec dy, Vec a, Vec b) {
  return ((a == 0.0f) & (b >= 0.0f)) ? Vec{} : dy * Power(a, b) * Log(a);
}

Vec Equal(Vec a, Vec b) { return a == b ? Splat(1.0f) : Vec{}; }
Vec IfEqual(Vec a, Vec b, Vec c) { return a == b ? c : Vec{}; }

// A NaN of either stays.
inline Vec Maximum(Vec a, Vec b) { return ((a > b) | (a != a)) ? a : b; }

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
    .where = Each3<Where>,
    .where_grad_a = Each2<WhereGradA>,
    .where_grad_b = Each2<WhereGradB>,
    .div_grad_b = Each3<DivGradB>,
    .pow_grad_a = PowGradA,
    .pow_grad_b = Each3<PowGradB>,
    .equal = Each2<Equal>,
    .if_equal = Each3<IfEqual>,
    .sum = Sum,
    .max = MaxOf,
    .add_rows = CombineRows<Add>,
    .max_rows = CombineRows<Maximum>,
};

}  // namespace muster::kernels::KERNELS_SIMD
