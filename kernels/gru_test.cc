#include "kernels/gru.h"

#include <array>

#include "kernels/comparison.h"

namespace muster::kernels::gru_test {
namespace {

using Doubles = std::vector<double>;

double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }

struct Case {
  RecurrentShape shape;
  bool initial;  // with h0
};

// Reference() takes x, w, r, bias and h0 one after the other in one vector, because Gradient()
// needs a function of one argument.
class GruTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr int kInputs = 5;

  std::array<int64_t, kInputs> Sizes() const {
    const auto& s = shape_;
    return {s.batch * s.time * s.inputs, s.directions * 3 * s.hidden * s.inputs,
            s.directions * 3 * s.hidden * s.hidden, s.directions * 6 * s.hidden,
            s.directions * s.batch * s.hidden};
  }

  // Returns y followed by h.
  Doubles Reference(const Doubles& all) const {
    const auto [batch, time, inputs, hidden, directions, reverse] = shape_;
    const double* x = all.data();
    const double* w = x + Sizes()[0];
    const double* r = w + Sizes()[1];
    const double* bias = r + Sizes()[2];
    const double* h0 = bias + Sizes()[3];
    Doubles y(batch * time * directions * hidden), last_h;
    for (int64_t d = 0; d < directions; ++d)
      for (int64_t b = 0; b < batch; ++b) {
        const int64_t at = (d * batch + b) * hidden;
        Doubles h(h0 + at, h0 + at + hidden);
        for (int64_t step = 0; step < time; ++step) {
          const int64_t t = d == 1 || reverse ? time - 1 - step : step;
          Doubles from_x(3 * hidden), from_h(3 * hidden);
          for (int64_t g = 0; g < 3 * hidden; ++g) {
            const int64_t row = d * 3 * hidden + g;
            from_x[g] = bias[d * 6 * hidden + g];
            from_h[g] = bias[d * 6 * hidden + 3 * hidden + g];
            for (int64_t i = 0; i < inputs; ++i)
              from_x[g] += w[row * inputs + i] * x[(b * time + t) * inputs + i];
            for (int64_t i = 0; i < hidden; ++i) from_h[g] += r[row * hidden + i] * h[i];
          }
          for (int64_t i = 0; i < hidden; ++i) {
            const double reset = SigmoidOf(from_x[i] + from_h[i]);
            const double update = SigmoidOf(from_x[hidden + i] + from_h[hidden + i]);
            const double fresh = std::tanh(from_x[2 * hidden + i] + reset * from_h[2 * hidden + i]);
            h[i] = (1 - update) * fresh + update * h[i];
            y[((b * time + t) * directions + d) * hidden + i] = h[i];
          }
        }
        last_h.insert(last_h.end(), h.begin(), h.end());
      }
    y.insert(y.end(), last_h.begin(), last_h.end());
    return y;
  }

  Doubles AllInputs() const {
    Doubles all;
    for (const Floats& input : inputs_) all.insert(all.end(), input.begin(), input.end());
    return all;
  }

  Floats Input(int i) const {
    Floats values = Normals(Sizes()[i], i);
    for (float& v : values) v *= i > 3 && !GetParam().initial ? 0 : 0.5f;
    return values;
  }

  // Returns y and h, and the gradients in the order of the inputs.
  std::pair<Floats, std::array<Floats, kInputs>> Run(const Floats& dy, const Floats& dh) {
    const auto& [x, w, r, bias, h0] = inputs_;
    const bool initial = GetParam().initial;
    Floats y(dy.size(), NAN), h(dh.size(), NAN), state(GruStateFloats(shape_), NAN);
    Floats workspace(GruWorkspaceFloats(shape_), NAN);
    Gru(y.data(), h.data(), state.data(), x.data(), w.data(), r.data(), bias.data(),
        initial ? h0.data() : nullptr, workspace.data(), shape_);
    workspace = Floats(GruGradWorkspaceFloats(shape_), NAN);
    std::array<Floats, kInputs> gradients = inputs_;
    for (Floats& gradient : gradients) std::fill(gradient.begin(), gradient.end(), NAN);
    GruGrad({.dx = gradients[0].data(),
             .dw = gradients[1].data(),
             .dr = gradients[2].data(),
             .dbias = gradients[3].data(),
             .dh0 = initial ? gradients[4].data() : nullptr},
            dy.data(), dh.data(), x.data(), w.data(), r.data(), y.data(), state.data(),
            initial ? h0.data() : nullptr, workspace.data(), shape_);
    y.insert(y.end(), h.begin(), h.end());
    return {y, gradients};
  }

  const RecurrentShape shape_ = GetParam().shape;
  const std::array<Floats, kInputs> inputs_ = {Input(0), Input(1), Input(2), Input(3), Input(4)};
  const int64_t last_size_ = shape_.directions * shape_.batch * shape_.hidden;
  const Floats dy_ = Normals(shape_.batch * shape_.time * shape_.directions * shape_.hidden, 10);
  const Floats dh_ = Normals(last_size_, 11);
};

INSTANTIATE_TEST_SUITE_P(
    Shapes, GruTest,
    testing::Values(Case{{1, 1, 1, 1, 1, false}, false}, Case{{1, 1, 1, 1, 1, false}, true},
                    Case{{2, 3, 5, 4, 1, false}, true}, Case{{3, 4, 2, 5, 1, true}, true},
                    Case{{2, 5, 3, 3, 2, false}, true}, Case{{2, 3, 3, 17, 2, false}, false}));

TEST_P(GruTest, OutputsAndDerivativesMatchTheFormula) {
  const auto [outputs, gradients] = Run(dy_, dh_);
  ExpectClose(outputs, Reference(AllInputs()), 64);

  Doubles dy = Wide(dy_);
  dy.insert(dy.end(), dh_.begin(), dh_.end());
  const Doubles expected =
      Gradient([&](const Doubles& all) { return Reference(all); }, AllInputs(), dy);
  auto begin = expected.begin();
  for (int i = 0; i < (GetParam().initial ? 5 : 4); ++i) {
    const auto end = begin + Sizes()[i];
    ExpectClose(gradients[i], Doubles(begin, end), 256);
    begin = end;
  }
}

TEST_P(GruTest, ThreadsDoNotChangeTheResult) {
  ExpectSameOnAnyThreads([&] {
    auto [all, gradients] = Run(dy_, dh_);
    for (int i = 0; i < 4; ++i) all.insert(all.end(), gradients[i].begin(), gradients[i].end());
    return all;
  });
}

}  // namespace
}  // namespace muster::kernels::gru_test
