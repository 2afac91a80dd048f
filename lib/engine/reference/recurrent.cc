// Lstm and Gru. Sources: Hochreiter & Schmidhuber, Neural Computation 9(8), 1997; Cho et al., EMNLP
// 2014. The formulas are those of torch.nn.LSTM and torch.nn.GRU.
#include <cmath>
#include <cstdint>
#include <vector>

#include "lib/engine/reference/operators.h"
#include "lib/engine/reference/tensor.h"

namespace muster::reference {
namespace {

using Vector = std::vector<double>;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// One direction's weights and its order in time.
struct Direction {
  const Tensor &w, &r, &bias;
  int64_t d;
  bool backward;

  int64_t gates() const { return w.shape[1]; }  // rows of w: gates times hidden size

  // Return one row of w x + b and of r h + b'.
  double FromInput(int64_t row, const Vector& x) const {
    double sum = bias({d, row});
    for (size_t i = 0; i < x.size(); ++i) sum += w({d, row, static_cast<int64_t>(i)}) * x[i];
    return sum;
  }
  double FromHidden(int64_t row, const Vector& h) const {
    double sum = bias({d, gates() + row});
    for (size_t i = 0; i < h.size(); ++i) sum += r({d, row, static_cast<int64_t>(i)}) * h[i];
    return sum;
  }
};

// Runs `step(direction, x, h, c)`, which replaces h and c, over time for every direction and
// sample. Returns {y, last h, last c}.
template <typename Step>
std::vector<Tensor> Unroll(const Call& call, const Tensor* h0, const Tensor* c0, Step step) {
  const Tensor &x = call[0], &r = call[2];
  const int64_t directions = r.shape[0], hidden = r.shape[2], batch = x.shape[0],
                steps = x.shape[1];
  Tensor y = Zeros({batch, steps, directions * hidden});
  Tensor last_h = Zeros({directions, batch, hidden}), last_c = last_h;
  for (int64_t d = 0; d < directions; ++d) {
    const Direction direction{call[1], r, call[3], d, d == 1 || call.Integer("reverse", 0) != 0};
    for (int64_t b = 0; b < batch; ++b) {
      Vector h(hidden, 0.0), c(hidden, 0.0);
      for (int64_t i = 0; i < hidden; ++i) {
        if (h0 != nullptr) h[i] = (*h0)({d, b, i});
        if (c0 != nullptr) c[i] = (*c0)({d, b, i});
      }
      for (int64_t s = 0; s < steps; ++s) {
        const int64_t t = direction.backward ? steps - 1 - s : s;
        Vector input;
        for (int64_t i = 0; i < x.last(); ++i) input.push_back(x({b, t, i}));
        step(direction, input, h, c);
        for (int64_t i = 0; i < hidden; ++i) y.at({b, t, d * hidden + i}) = h[i];
      }
      for (int64_t i = 0; i < hidden; ++i) {
        last_h.at({d, b, i}) = h[i];
        last_c.at({d, b, i}) = c[i];
      }
    }
  }
  return {y, last_h, last_c};
}

std::vector<Tensor> Lstm(const Call& call) {
  auto step = [](const Direction& d, const Vector& x, Vector& h, Vector& c) {
    const int64_t hidden = static_cast<int64_t>(h.size());
    auto gate = [&, before = h](int64_t number, int64_t i) {
      const int64_t row = number * hidden + i;
      return d.FromInput(row, x) + d.FromHidden(row, before);
    };
    for (int64_t i = 0; i < hidden; ++i) {
      const double in = Sigmoid(gate(0, i)), forget = Sigmoid(gate(1, i)),
                   cell = std::tanh(gate(2, i)), out = Sigmoid(gate(3, i));
      c[i] = forget * c[i] + in * cell;
      h[i] = out * std::tanh(c[i]);
    }
  };
  std::vector<Tensor> outputs =
      Unroll(call, call.has(4) ? &call[4] : nullptr, call.has(5) ? &call[5] : nullptr, step);
  outputs.push_back(State());
  return outputs;
}

std::vector<Tensor> Gru(const Call& call) {
  auto step = [](const Direction& d, const Vector& x, Vector& h, Vector&) {
    const int64_t hidden = static_cast<int64_t>(h.size());
    const Vector before = h;
    auto input = [&](int64_t gate, int64_t i) { return d.FromInput(gate * hidden + i, x); };
    auto recurrent = [&](int64_t gate, int64_t i) {
      return d.FromHidden(gate * hidden + i, before);
    };
    for (int64_t i = 0; i < hidden; ++i) {
      const double reset = Sigmoid(input(0, i) + recurrent(0, i));
      const double update = Sigmoid(input(1, i) + recurrent(1, i));
      const double candidate = std::tanh(input(2, i) + reset * recurrent(2, i));
      h[i] = (1 - update) * candidate + update * before[i];
    }
  };
  std::vector<Tensor> outputs = Unroll(call, call.has(4) ? &call[4] : nullptr, nullptr, step);
  outputs[2] = State();
  return outputs;
}

}  // namespace

void AddRecurrences(Operators& operators) {
  operators["Lstm"] = Lstm;
  operators["Gru"] = Gru;
}

}  // namespace muster::reference
