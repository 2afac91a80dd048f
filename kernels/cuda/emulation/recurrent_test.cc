#include "kernels/cuda/recurrent.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cuda/emulation/device_memory.h"
#include "kernels/gru.h"
#include "kernels/lstm.h"
#include "kernels/recurrent_shape.h"

namespace muster::kernels::cuda::emulation::recurrent_test {
namespace {

// Odd sizes: more than one block, and no row of whole vectors.
constexpr int64_t kBatch = 3, kTime = 5, kInputs = 4, kHidden = 101, kDirections = 2;
const RecurrentShape kShape = {.batch = kBatch,
                               .time = kTime,
                               .inputs = kInputs,
                               .hidden = kHidden,
                               .directions = kDirections};

// to[m, n] += a[m, k] b[n, k]ᵀ, or a[m, k] b[k, n] if `transposed`.
void AddProduct(float* to, const float* a, const float* b, int64_t m, int64_t n, int64_t k,
                bool transposed = false) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = to[i * n + j];
      for (int64_t l = 0; l < k; ++l) {
        sum += double{a[i * k + l]} * (transposed ? b[l * n + j] : b[j * k + l]);
      }
      to[i * n + j] = static_cast<float>(sum);
    }
  }
}

// Returns columns [from, from + count) of x[rows, columns].
Floats Columns(const Floats& x, int64_t columns, int64_t from, int64_t count) {
  Floats part;
  for (size_t row = 0; row < x.size() / columns; ++row) {
    part.insert(part.end(), x.begin() + row * columns + from,
                x.begin() + row * columns + from + count);
  }
  return part;
}

Floats Part(const Floats& x, int64_t number, int64_t parts) {
  const auto each = static_cast<int64_t>(x.size()) / parts;
  return {x.begin() + number * each, x.begin() + (number + 1) * each};
}

// Values and gradients of a layer of two directions. An LSTM has c, a GRU does not.
struct Layer {
  Floats y, h, c, dx, dw, dr, dbias, dh0, dc0;
};

class RecurrentLayer {
 public:
  RecurrentLayer(int64_t gates, Type type)
      : gates_(gates),
        type_(type),
        x_(Scaled(kBatch * kTime * kInputs, 1, 1)),
        w_(Scaled(kDirections * Row() * kInputs, 2, 0.5f)),
        r_(Scaled(kDirections * Row() * kHidden, 3, 0.1f)),
        bias_(Scaled(kDirections * 2 * Row(), 4, 0.3f)),
        h0_(Scaled(kDirections * kState, 5, 0.5f)),
        c0_(Scaled(kDirections * kState, 6, 0.5f)),
        dy_(Scaled(kBatch * kTime * kDirections * kHidden, 7, 1)),
        dh_(Scaled(kDirections * kState, 8, 1)),
        dc_(Scaled(kDirections * kState, 9, 1)) {}

  // Computed by the CPU kernels, in f32.
  Layer Expected() const {
    Layer layer = Zeros();
    Floats state(std::max(LstmStateFloats(kShape), GruStateFloats(kShape)));
    Floats work(std::max({LstmGradWorkspaceFloats(kShape), GruGradWorkspaceFloats(kShape),
                          GruWorkspaceFloats(kShape)}));
    if (IsLstm()) {
      Lstm(layer.y.data(), layer.h.data(), layer.c.data(), state.data(), x_.data(), w_.data(),
           r_.data(), bias_.data(), h0_.data(), c0_.data(), kShape);
      LstmGrad({.dx = layer.dx.data(),
                .dw = layer.dw.data(),
                .dr = layer.dr.data(),
                .dbias = layer.dbias.data(),
                .dh0 = layer.dh0.data(),
                .dc0 = layer.dc0.data()},
               dy_.data(), dh_.data(), dc_.data(), x_.data(), w_.data(), r_.data(), layer.y.data(),
               state.data(), h0_.data(), c0_.data(), work.data(), kShape);
    } else {
      Gru(layer.y.data(), layer.h.data(), state.data(), x_.data(), w_.data(), r_.data(),
          bias_.data(), h0_.data(), work.data(), kShape);
      GruGrad({.dx = layer.dx.data(),
               .dw = layer.dw.data(),
               .dr = layer.dr.data(),
               .dbias = layer.dbias.data(),
               .dh0 = layer.dh0.data()},
              dy_.data(), dh_.data(), x_.data(), w_.data(), r_.data(), layer.y.data(), state.data(),
              h0_.data(), work.data(), kShape);
    }
    return layer;
  }

  // Computed by the emulated kernels, with the products between them computed here.
  Layer Actual() const {
    Layer layer = Zeros();
    DeviceMemory y(dy_.size() * Bytes(type_));
    for (int64_t d = 0; d < kDirections; ++d) Run(d, y, layer);
    layer.y = y.Read(type_);
    return layer;
  }

 private:
  static constexpr int64_t kState = kBatch * kHidden;

  int64_t Row() const { return gates_ * kHidden; }
  bool IsLstm() const { return gates_ == 4; }
  Floats Scaled(int64_t n, uint64_t seed, float scale) const {
    Floats values = Normals(n, seed);
    for (float& value : values) value *= scale;
    return Rounded(values, type_);
  }
  Layer Zeros() const {
    return {.y = Floats(dy_.size()),
            .h = Floats(h0_.size()),
            .c = Floats(IsLstm() ? c0_.size() : 0),
            .dx = Floats(x_.size()),
            .dw = Floats(w_.size()),
            .dr = Floats(r_.size()),
            .dbias = Floats(bias_.size()),
            .dh0 = Floats(h0_.size()),
            .dc0 = Floats(IsLstm() ? c0_.size() : 0)};
  }
  RecurrentStep StepOf(int64_t d, int64_t k) const {  // the k-th step in the direction's order
    const auto time = [&](int64_t n) { return d == 0 ? n : kTime - 1 - n; };
    return {.batch = kBatch,
            .time = kTime,
            .hidden = kHidden,
            .y_row = kDirections * kHidden,
            .column = d * kHidden,
            .step = time(k),
            .before = k == 0 ? -1 : time(k - 1),
            .type = type_};
  }
  // Returns the rows [B, columns] of a tensor [B, T, columns] at a time step.
  static Floats AtStep(const Floats& all, int64_t columns, int64_t step) {
    Floats rows;
    for (int64_t b = 0; b < kBatch; ++b) {
      const auto from = all.begin() + (b * kTime + step) * columns;
      rows.insert(rows.end(), from, from + columns);
    }
    return rows;
  }

  void Run(int64_t d, DeviceMemory& y, Layer& layer) const {
    const Floats w = Part(w_, d, kDirections), r = Part(r_, d, kDirections);
    const Floats first = Part(h0_, d, kDirections);
    DeviceMemory bias(Part(bias_, d, kDirections), type_), h0(first, type_);
    DeviceMemory c0(Part(c0_, d, kDirections), type_);
    Floats products(kBatch * kTime * Row());
    AddProduct(products.data(), x_.data(), w.data(), kBatch * kTime, Row(), kInputs);
    DeviceMemory inputs(products, Type::kF32);
    DeviceMemory state(RecurrentStateFloats(kBatch, kTime, kHidden) * sizeof(float));
    DeviceMemory h(kState * Bytes(type_)), c(kState * Bytes(type_));
    for (int64_t k = 0; k < kTime; ++k) {
      const RecurrentStep step = StepOf(d, k);
      const Floats before = k == 0 ? first
                                   : Columns(AtStep(y.Read(type_), step.y_row, step.before),
                                             step.y_row, step.column, kHidden);
      Floats product(kBatch * Row());
      AddProduct(product.data(), before.data(), r.data(), kBatch, Row(), kHidden);
      DeviceMemory hidden(product, Type::kF32);
      const bool is_last = k == kTime - 1;
      void* const last_h = is_last ? h.data() : nullptr;
      ASSERT_EQ(IsLstm() ? LstmStep(y.data(), last_h, is_last ? c.data() : nullptr, state.floats(),
                                    inputs.floats(), hidden.floats(), bias.data(), c0.data(), step,
                                    nullptr)
                         : GruStep(y.data(), last_h, state.floats(), inputs.floats(),
                                   hidden.floats(), bias.data(), h0.data(), step, nullptr),
                cudaSuccess);
    }
    Store(h.Read(type_), d, layer.h);
    if (IsLstm()) Store(c.Read(type_), d, layer.c);
    Back(d, y, h0, c0, state, w, r, layer);
  }

  void Back(int64_t d, DeviceMemory& y, DeviceMemory& h0, DeviceMemory& c0, DeviceMemory& state,
            const Floats& w, const Floats& r, Layer& layer) const {
    DeviceMemory dy(dy_, type_), dh(Part(dh_, d, kDirections), type_);
    DeviceMemory dc(Part(dc_, d, kDirections), type_);
    DeviceMemory dgates(kBatch * kTime * Row() * Bytes(type_));
    DeviceMemory dhidden(kBatch * kTime * Row() * Bytes(type_));
    DeviceMemory through(Floats(kState), Type::kF32);
    Floats carried(kState);
    for (int64_t k = kTime - 1; k >= 0; --k) {
      const RecurrentStep step = StepOf(d, k);
      DeviceMemory sent(carried, Type::kF32);
      const bool is_first = k == kTime - 1;
      const float* const from_after = is_first ? nullptr : sent.floats();
      const void* const last_dh = is_first ? dh.data() : nullptr;
      ASSERT_EQ(IsLstm()
                    ? LstmStepGrad(dgates.data(), through.floats(), from_after, dy.data(), last_dh,
                                   is_first ? dc.data() : nullptr, state.floats(), c0.data(), step,
                                   nullptr)
                    : GruStepGrad(dgates.data(), dhidden.data(), through.floats(), from_after,
                                  dy.data(), last_dh, state.floats(), h0.data(), step, nullptr),
                cudaSuccess);
      const Floats of_hidden = (IsLstm() ? dgates : dhidden).Read(type_);
      std::ranges::fill(carried, 0);
      AddProduct(carried.data(), AtStep(of_hidden, Row(), step.step).data(), r.data(), kBatch,
                 kHidden, Row(), /*transposed=*/true);
    }
    const Floats of_inputs = dgates.Read(type_);
    const Floats of_hidden = (IsLstm() ? dgates : dhidden).Read(type_);
    DeviceMemory before(kBatch * kTime * kHidden * Bytes(type_));
    ASSERT_EQ(ShiftHidden(before.data(), y.data(), h0.data(), StepOf(d, 0), StepOf(d, 0).step,
                          d == 0 ? 1 : -1, nullptr),
              cudaSuccess);
    AddProduct(layer.dx.data(), of_inputs.data(), w.data(), kBatch * kTime, kInputs, Row(),
               /*transposed=*/true);
    AddOuter(of_inputs, x_, kInputs, d, layer.dw);
    AddOuter(of_hidden, before.Read(type_), kHidden, d, layer.dr);
    const Floats ones(kBatch * kTime, 1);
    AddOuter(of_inputs, ones, 1, 2 * d, layer.dbias);
    AddOuter(of_hidden, ones, 1, 2 * d + 1, layer.dbias);
    // The gradient of h0 comes through r and, in a GRU, also past it.
    DeviceMemory sent(carried, Type::kF32), sum(kState * Bytes(type_)), dc0(kState * Bytes(type_));
    ASSERT_EQ(AddCarried(sum.data(), sent.floats(), IsLstm() ? nullptr : through.floats(), type_,
                         kState, nullptr),
              cudaSuccess);
    Store(sum.Read(type_), d, layer.dh0);
    if (!IsLstm()) return;
    ASSERT_EQ(AddCarried(dc0.data(), nullptr, through.floats(), type_, kState, nullptr),
              cudaSuccess);
    Store(dc0.Read(type_), d, layer.dc0);
  }

  static void Store(const Floats& from, int64_t number, Floats& to) {
    std::ranges::copy(from, to.begin() + number * static_cast<int64_t>(from.size()));
  }
  // Adds to part `number` of `to`, [Row, columns], the sum of the products of both tensors' rows.
  void AddOuter(const Floats& gates, const Floats& x, int64_t columns, int64_t number,
                Floats& to) const {
    float* part = to.data() + number * Row() * columns;
    for (int64_t i = 0; i < kBatch * kTime; ++i) {
      for (int64_t row = 0; row < Row(); ++row) {
        for (int64_t j = 0; j < columns; ++j) {
          part[row * columns + j] += gates[i * Row() + row] * x[i * columns + j];
        }
      }
    }
  }

  const int64_t gates_;
  const Type type_;
  const Floats x_, w_, r_, bias_, h0_, c0_, dy_, dh_, dc_;
};

void ExpectNear(const Floats& actual, const Floats& expected, Type type, const char* what) {
  SCOPED_TRACE(what);
  ASSERT_EQ(actual.size(), expected.size());
  float largest = 0;
  for (float value : expected) largest = std::max(largest, std::abs(value));
  // The tolerance covers about a dozen successive roundings.
  const double tolerance = type == Type::kF32 ? 1e-5 : type == Type::kF16 ? 4e-3 : 3e-2;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * largest) << "element " << i;
  }
}

TEST(RecurrentTest, LayersOfTwoDirectionsMatchTheCpu) {
  for (const int64_t gates : {4, 3}) {
    ForEveryRun([&](Type type) {
      SCOPED_TRACE(gates);
      const RecurrentLayer layer(gates, type);
      const Layer expected = layer.Expected(), actual = layer.Actual();
      ExpectNear(actual.y, expected.y, type, "y");
      ExpectNear(actual.h, expected.h, type, "h");
      ExpectNear(actual.c, expected.c, type, "c");
      ExpectNear(actual.dx, expected.dx, type, "dx");
      ExpectNear(actual.dw, expected.dw, type, "dw");
      ExpectNear(actual.dr, expected.dr, type, "dr");
      ExpectNear(actual.dbias, expected.dbias, type, "dbias");
      ExpectNear(actual.dh0, expected.dh0, type, "dh0");
      ExpectNear(actual.dc0, expected.dc0, type, "dc0");
    });
  }
}

}  // namespace
}  // namespace muster::kernels::cuda::emulation::recurrent_test
