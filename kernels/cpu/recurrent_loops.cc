#include "kernels/cpu/recurrent_loops.h"

#include "kernels/cpu/vector.h"

namespace muster::kernels::KERNELS_SIMD {
namespace {

// Loads the first m <= kLanes elements from i on, or zeros if p is null.
inline Vec LoadSome(const float* p, int64_t i, int64_t m) {
  if (p == nullptr) return Vec{};
  return m == kLanes ? Load(p + i) : LoadFirst(p + i, m);
}

inline void StoreSome(float* p, int64_t i, Vec v, int64_t m) {
  if (m == kLanes) {
    Store(p + i, v);
  } else {
    StoreFirst(p + i, v, m);
  }
}

// Calls step(i, m) for vectors of m elements that start at i.
template <typename F>
inline void ForEachVector(int64_t n, F step) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) step(i, int64_t{kLanes});
  if (i < n) step(i, n - i);
}

void Lstm(float* h, float* c, float* gates, const float* bias, const float* previous_c, int64_t n) {
  ForEachVector(n, [=](int64_t i, int64_t m) {
    auto input = [=](int gate) {
      const int64_t at = gate * n + i;
      return LoadSome(gates, at, m) + (LoadSome(bias, at, m) + LoadSome(bias, 4 * n + at, m));
    };
    const Vec in = Sigmoid(input(0)), forget = Sigmoid(input(1));
    const Vec cell = Tanh(input(2)), out = Sigmoid(input(3));
    const Vec next = forget * LoadSome(previous_c, i, m) + in * cell;
    StoreSome(gates, i, in, m);
    StoreSome(gates, n + i, forget, m);
    StoreSome(gates, 2 * n + i, cell, m);
    StoreSome(gates, 3 * n + i, out, m);
    StoreSome(c, i, next, m);
    StoreSome(h, i, out * Tanh(next), m);
  });
}

void LstmGrad(float* dgates, float* dc, const float* dh, const float* dy, const float* gates,
              const float* c, const float* previous_c, int64_t n) {
  ForEachVector(n, [=](int64_t i, int64_t m) {
    const Vec in = LoadSome(gates, i, m), forget = LoadSome(gates, n + i, m);
    const Vec cell = LoadSome(gates, 2 * n + i, m), out = LoadSome(gates, 3 * n + i, m);
    const Vec squashed = Tanh(LoadSome(c, i, m));
    const Vec by_h = LoadSome(dh, i, m) + LoadSome(dy, i, m);
    const Vec by_c = LoadSome(dc, i, m) + by_h * out * (1.0f - squashed * squashed);
    StoreSome(dgates, i, by_c * cell * (in * (1.0f - in)), m);
    StoreSome(dgates, n + i, by_c * LoadSome(previous_c, i, m) * (forget * (1.0f - forget)), m);
    StoreSome(dgates, 2 * n + i, by_c * in * (1.0f - cell * cell), m);
    StoreSome(dgates, 3 * n + i, by_h * squashed * (out * (1.0f - out)), m);
    StoreSome(dc, i, by_c * forget, m);
  });
}

void Gru(float* h, float* gates, float* candidate, const float* products, const float* bias,
         const float* previous_h, int64_t n) {
  ForEachVector(n, [=](int64_t i, int64_t m) {
    auto from_x = [=](int gate) {
      return LoadSome(gates, gate * n + i, m) + LoadSome(bias, gate * n + i, m);
    };
    auto from_h = [=](int gate) {
      return LoadSome(products, gate * n + i, m) + LoadSome(bias, (3 + gate) * n + i, m);
    };
    const Vec reset = Sigmoid(from_x(0) + from_h(0)), update = Sigmoid(from_x(1) + from_h(1));
    const Vec inner = from_h(2);
    const Vec fresh = Tanh(from_x(2) + reset * inner);
    StoreSome(gates, i, reset, m);
    StoreSome(gates, n + i, update, m);
    StoreSome(gates, 2 * n + i, fresh, m);
    StoreSome(candidate, i, inner, m);
    StoreSome(h, i, fresh + update * (LoadSome(previous_h, i, m) - fresh), m);
  });
}

void GruGrad(float* dgates, float* dproducts, float* dh, const float* dy, const float* gates,
             const float* candidate, const float* previous_h, int64_t n) {
  ForEachVector(n, [=](int64_t i, int64_t m) {
    const Vec reset = LoadSome(gates, i, m), update = LoadSome(gates, n + i, m);
    const Vec fresh = LoadSome(gates, 2 * n + i, m);
    const Vec by_h = LoadSome(dh, i, m) + LoadSome(dy, i, m);
    const Vec by_fresh = by_h * (1.0f - update) * (1.0f - fresh * fresh);
    const Vec by_update = by_h * (LoadSome(previous_h, i, m) - fresh) * (update * (1.0f - update));
    const Vec by_reset = by_fresh * LoadSome(candidate, i, m) * (reset * (1.0f - reset));
    StoreSome(dgates, i, by_reset, m);
    StoreSome(dgates, n + i, by_update, m);
    StoreSome(dgates, 2 * n + i, by_fresh, m);
    StoreSome(dproducts, i, by_reset, m);
    StoreSome(dproducts, n + i, by_update, m);
    StoreSome(dproducts, 2 * n + i, by_fresh * reset, m);
    StoreSome(dh, i, by_h * update, m);
  });
}

}  // namespace

extern const RecurrentLoops kRecurrentLoops;
const RecurrentLoops kRecurrentLoops = {
    .lstm = Lstm,
    .lstm_grad = LstmGrad,
    .gru = Gru,
    .gru_grad = GruGrad,
};

}  // namespace muster::kernels::KERNELS_SIMD
