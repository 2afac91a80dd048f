#include "kernels/lstm.h"

#include <array>

#include "kernels/comparison.h"

namespace muster::kernels::lstm_test {
namespace {

using Doubles = std::vector<double>;

double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }

struct Case {
  RecurrentShape shape;
  bool initial;  // with h0 and c0
};

// Reference() takes x, w, r, bias, h0 and c0 one after the other in one vector, because Gradient()
// needs a function of one argument.
class LstmTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr int kInputs = 6;

  std::array<int64_t, kInputs> Sizes() const {
    const auto& s = shape_;
    const int64_t last = s.directions * s.batch * s.hidden;
    return {s.batch * s.time * s.inputs,
            s.directions * 4 * s.hidden * s.inputs,
            s.directions * 4 * s.hidden * s.hidden,
            s.directions * 8 * s.hidden,
            last,
            last};
  }

  // Returns y, h and c one after the other.
  Doubles Reference(const Doubles& all) const {
    const auto [batch, time, inputs, hidden, directions, reverse] = shape_;
    const double* x = all.data();
    const double* w = x + Sizes()[0];
    const double* r = w + Sizes()[1];
    const double* bias = r + Sizes()[2];
    const double* h0 = bias + Sizes()[3];
    const double* c0 = h0 + Sizes()[4];
    Doubles y(batch * time * directions * hidden), last_h, last_c;
    for (int64_t d = 0; d < directions; ++d)
      for (int64_t b = 0; b < batch; ++b) {
        const int64_t at = (d * batch + b) * hidden;
        Doubles h(h0 + at, h0 + at + hidden), c(c0 + at, c0 + at + hidden);
        for (int64_t step = 0; step < time; ++step) {
          const int64_t t = d == 1 || reverse ? time - 1 - step : step;
          Doubles gates(4 * hidden);
          for (int64_t g = 0; g < 4 * hidden; ++g) {
            const int64_t row = d * 4 * hidden + g;
            gates[g] = bias[d * 8 * hidden + g] + bias[d * 8 * hidden + 4 * hidden + g];
            for (int64_t i = 0; i < inputs; ++i)
              gates[g] += w[row * inputs + i] * x[(b * time + t) * inputs + i];
            for (int64_t i = 0; i < hidden; ++i) gates[g] += r[row * hidden + i] * h[i];
          }
          for (int64_t i = 0; i < hidden; ++i) {
            c[i] = SigmoidOf(gates[hidden + i]) * c[i] +
                   SigmoidOf(gates[i]) * std::tanh(gates[2 * hidden + i]);
            h[i] = SigmoidOf(gates[3 * hidden + i]) * std::tanh(c[i]);
            y[((b * time + t) * directions + d) * hidden + i] = h[i];
          }
        }
        last_h.insert(last_h.end(), h.begin(), h.end());
        last_c.insert(last_c.end(), c.begin(), c.end());
      }
    y.insert(y.end(), last_h.begin(), last_h.end());
    y.insert(y.end(), last_c.begin(), last_c.end());
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

  // Returns y, h and c, and the gradients in the order of the inputs.
  std::pair<Floats, std::array<Floats, kInputs>> Run(const Floats& dy, const Floats& dh,
                                                     const Floats& dc) {
    const auto& [x, w, r, bias, h0, c0] = inputs_;
    const bool initial = GetParam().initial;
    Floats y(dy.size(), NAN), h(dh.size(), NAN), c(dh.size(), NAN);
    Floats state(LstmStateFloats(shape_), NAN), workspace(LstmGradWorkspaceFloats(shape_), NAN);
    Lstm(y.data(), h.data(), c.data(), state.data(), x.data(), w.data(), r.data(), bias.data(),
         initial ? h0.data() : nullptr, initial ? c0.data() : nullptr, shape_);
    std::array<Floats, kInputs> gradients = inputs_;
    for (Floats& gradient : gradients) std::fill(gradient.begin(), gradient.end(), NAN);
    LstmGrad({.dx = gradients[0].data(),
              .dw = gradients[1].data(),
              .dr = gradients[2].data(),
              .dbias = gradients[3].data(),
              .dh0 = initial ? gradients[4].data() : nullptr,
              .dc0 = initial ? gradients[5].data() : nullptr},
             dy.data(), dh.data(), dc.data(), x.data(), w.data(), r.data(), y.data(), state.data(),
             initial ? h0.data() : nullptr, initial ? c0.data() : nullptr, workspace.data(),
             shape_);
    y.insert(y.end(), h.begin(), h.end());
    y.insert(y.end(), c.begin(), c.end());
    return {y, gradients};
  }

  const RecurrentShape shape_ = GetParam().shape;
  const std::array<Floats, kInputs> inputs_ = {Input(0), Input(1), Input(2),
                                               Input(3), Input(4), Input(5)};
  const int64_t last_size_ = shape_.directions * shape_.batch * shape_.hidden;
  const Floats dy_ = Normals(shape_.batch * shape_.time * shape_.directions * shape_.hidden, 10);
  const Floats dh_ = Normals(last_size_, 11), dc_ = Normals(last_size_, 12);
};

INSTANTIATE_TEST_SUITE_P(
    Shapes, LstmTest,
    testing::Values(Case{{1, 1, 1, 1, 1, false}, false}, Case{{1, 1, 1, 1, 1, false}, true},
                    Case{{2, 3, 5, 4, 1, false}, true}, Case{{3, 4, 2, 5, 1, true}, true},
                    Case{{2, 5, 3, 3, 2, false}, true}, Case{{2, 3, 3, 17, 2, false}, false}));

TEST_P(LstmTest, OutputsAndDerivativesMatchTheFormula) {
  const auto [outputs, gradients] = Run(dy_, dh_, dc_);
  ExpectClose(outputs, Reference(AllInputs()), 64);

  Doubles dy = Wide(dy_);
  dy.insert(dy.end(), dh_.begin(), dh_.end());
  dy.insert(dy.end(), dc_.begin(), dc_.end());
  const Doubles expected =
      Gradient([&](const Doubles& all) { return Reference(all); }, AllInputs(), dy);
  auto begin = expected.begin();
  for (int i = 0; i < (GetParam().initial ? 6 : 4); ++i) {
    const auto end = begin + Sizes()[i];
    ExpectClose(gradients[i], Doubles(begin, end), 256);
    begin = end;
  }
}

TEST_P(LstmTest, MissingDerivativesOfTheOutputsAreZeros) {
  const Floats no_dy(dy_.size(), 0.0f), none(last_size_, 0.0f);
  const auto& [x, w, r, bias, h0, c0] = inputs_;
  const auto [outputs, expected] = Run(no_dy, none, none);
  for (float v : expected[0]) EXPECT_EQ(v, 0);
  Floats y(dy_.size()), h(last_size_), c(last_size_), state(LstmStateFloats(shape_)),
      workspace(LstmGradWorkspaceFloats(shape_), NAN), dx(x.size(), NAN), dw(w.size(), NAN),
      dr(r.size(), NAN), dbias(bias.size(), NAN);
  Lstm(y.data(), h.data(), c.data(), state.data(), x.data(), w.data(), r.data(), bias.data(),
       nullptr, nullptr, shape_);
  LstmGrad({.dx = dx.data(), .dw = dw.data(), .dr = dr.data(), .dbias = dbias.data()}, nullptr,
           nullptr, nullptr, x.data(), w.data(), r.data(), y.data(), state.data(), nullptr, nullptr,
           workspace.data(), shape_);
  EXPECT_EQ(dx, expected[0]);
  EXPECT_EQ(dw, expected[1]);
}

TEST_P(LstmTest, ThreadsDoNotChangeTheResult) {
  ExpectSameOnAnyThreads([&] {
    auto [all, gradients] = Run(dy_, dh_, dc_);
    for (int i = 0; i < 4; ++i) all.insert(all.end(), gradients[i].begin(), gradients[i].end());
    return all;
  });
}

}  // namespace
}  // namespace muster::kernels::lstm_test
