#include "kernels/elementwise.h"

#include <array>
#include <functional>
#include <numeric>
#include <tuple>

#include "kernels/comparison.h"

namespace muster::kernels::elementwise_test {
namespace {

using Shape = std::vector<int64_t>;

// Returns the element of `operand`, which broadcasts to `shape`, for element i of `shape`.
int64_t Broadcast(int64_t i, const Shape& shape, const Shape& operand) {
  int64_t offset = 0, elements = 1;
  for (size_t back = 1; back <= shape.size(); ++back) {
    const int64_t index = i % shape[shape.size() - back];
    i /= shape[shape.size() - back];
    if (back > operand.size()) continue;
    const int64_t size = operand[operand.size() - back];
    offset += size == 1 ? 0 : index * elements;
    elements *= size;
  }
  return offset;
}

struct Shapes {
  Shape a, b, result;
};

// Pairs of shapes: equal shapes, scalars, suffixes, one number per channel or row, both operands
// broadcast, and many dimensions.
const Shapes kShapes[] = {
    {{1}, {1}, {1}},
    {{}, {}, {}},
    {{37}, {37}, {37}},
    {{3, 5}, {}, {3, 5}},
    {{}, {2, 17}, {2, 17}},
    {{70, 33}, {33}, {70, 33}},
    {{2, 3, 5, 7}, {3, 1, 1}, {2, 3, 5, 7}},
    {{300, 4}, {300, 1}, {300, 4}},
    {{9, 1}, {1, 21}, {9, 21}},
    {{2, 1, 3, 1, 5}, {4, 3, 2, 5}, {2, 4, 3, 2, 5}},
    {{2, 1, 600}, {1, 3, 600}, {2, 3, 600}},
    {{5, 1, 1, 40}, {5, 7, 6, 40}, {5, 7, 6, 40}},
    {{40000}, {1}, {40000}},
    {{1100, 3}, {3}, {1100, 3}},
    {{17, 2049}, {17, 1}, {17, 2049}},
};

class BroadcastTest : public testing::TestWithParam<Shapes> {
 protected:
  Floats Positive(Floats values) {
    for (float& v : values) v = 0.5f + std::abs(v);
    return values;
  }

  template <typename F>
  std::vector<double> Expected(F f) const {
    std::vector<double> y;
    for (int64_t i = 0; i < Elements(shapes_.result); ++i) {
      y.push_back(f(a_[Broadcast(i, shapes_.result, shapes_.a)],
                    b_[Broadcast(i, shapes_.result, shapes_.b)]));
    }
    return y;
  }

  // Returns f(dy, a, b), summed over the dimensions along which `to` is broadcast.
  template <typename F>
  std::vector<double> ExpectedGrad(const Shape& to, F f) const {
    std::vector<double> sum(Elements(to), 0.0);
    for (int64_t i = 0; i < Elements(shapes_.result); ++i) {
      sum[Broadcast(i, shapes_.result, to)] +=
          f(dy_[i], a_[Broadcast(i, shapes_.result, shapes_.a)],
            b_[Broadcast(i, shapes_.result, shapes_.b)]);
    }
    return sum;
  }

  int64_t TermsOf(const Shape& to) const { return Elements(shapes_.result) / Elements(to); }

  const Shapes shapes_ = GetParam();
  const Floats a_ = Positive(Normals(Elements(shapes_.a), 1));
  const Floats b_ = Positive(Normals(Elements(shapes_.b), 2));
  const Floats dy_ = Normals(Elements(shapes_.result), 3);
  const Operand a_operand_{a_.data(), shapes_.a};
  const Operand b_operand_{b_.data(), shapes_.b};
  const Operand dy_operand_{dy_.data(), shapes_.result};
};

INSTANTIATE_TEST_SUITE_P(Shapes, BroadcastTest, testing::ValuesIn(kShapes));

TEST_P(BroadcastTest, FunctionsBroadcastTheirOperandsLikeNumpy) {
  Floats y(dy_.size(), NAN);
  Add(y.data(), a_operand_, b_operand_);
  ExpectClose(y, Expected([](double a, double b) { return a + b; }));
  Sub(y.data(), a_operand_, b_operand_);
  ExpectClose(y, Expected([](double a, double b) { return a - b; }));
  Mul(y.data(), a_operand_, b_operand_);
  ExpectClose(y, Expected([](double a, double b) { return a * b; }));
  Div(y.data(), a_operand_, b_operand_);
  ExpectClose(y, Expected([](double a, double b) { return a / b; }));
  Pow(y.data(), a_operand_, b_operand_);
  ExpectClose(y, Expected([](double a, double b) { return std::pow(a, b); }));
  Minimum(y.data(), a_operand_, b_operand_);
  ExpectClose(y, Expected([](double a, double b) { return std::min(a, b); }));
  Maximum(y.data(), a_operand_, b_operand_);
  ExpectClose(y, Expected([](double a, double b) { return std::max(a, b); }));
  Mod(y.data(), a_operand_, b_operand_);
  ExpectClose(y, Expected([](double a, double b) { return a - b * std::floor(a / b); }));
}

// The operands include large integers that a float cannot represent exactly.
TEST_P(BroadcastTest, IntegersBroadcastLikeNumpyAndWrapAround) {
  std::vector<int32_t> a = RandomIds(a_.size(), INT32_MAX, 6), b = RandomIds(b_.size(), 7, 7);
  for (size_t i = 0; i < a.size(); ++i) {
    if (i % 3 == 0) a[i] = i % 2 == 0 ? INT32_MIN : static_cast<int32_t>(i) % 7 - 3;
  }
  for (int32_t& v : b) v = v == 6 ? INT32_MIN : v - 3;
  const auto expect = [&](const char* name,
                          void (*kernel)(int32_t*, const IntegerOperand&, const IntegerOperand&),
                          int64_t (*f)(int64_t, int64_t)) {
    SCOPED_TRACE(name);
    std::vector<int32_t> y(dy_.size(), -77);
    kernel(y.data(), {a.data(), shapes_.a}, {b.data(), shapes_.b});
    for (size_t i = 0; i < y.size(); ++i) {
      const int32_t own = a[Broadcast(i, shapes_.result, shapes_.a)];
      const int32_t other = b[Broadcast(i, shapes_.result, shapes_.b)];
      ASSERT_EQ(y[i], static_cast<int32_t>(static_cast<uint64_t>(f(own, other))))
          << own << ", " << other;
    }
  };
  expect("Add", Add, [](int64_t a, int64_t b) { return a + b; });
  expect("Sub", Sub, [](int64_t a, int64_t b) { return a - b; });
  expect("Mul", Mul, [](int64_t a, int64_t b) { return a * b; });
  expect("Div", Div, [](int64_t a, int64_t b) { return b == 0 ? 0 : a / b; });
  expect("Mod", Mod, [](int64_t a, int64_t b) { return b == 0 ? 0 : (a % b + b) % b; });
  expect("Minimum", Minimum, [](int64_t a, int64_t b) { return std::min(a, b); });
  expect("Maximum", Maximum, [](int64_t a, int64_t b) { return std::max(a, b); });
  expect("Equal", Equal, [](int64_t a, int64_t b) { return int64_t{a == b}; });
  expect("Less", Less, [](int64_t a, int64_t b) { return int64_t{a < b}; });
  expect("LessOrEqual", LessOrEqual, [](int64_t a, int64_t b) { return int64_t{a <= b}; });
}

TEST_P(BroadcastTest, ComparisonsSayOneOrZero) {
  Floats b = b_;
  for (size_t i = 0; i < b.size(); i += 2) b[i] = a_[i % a_.size()];
  if (b.size() > 2) b[2] = NAN;
  const auto expect = [&](const char* name,
                          void (*kernel)(int32_t*, const Operand&, const Operand&),
                          bool (*f)(float, float)) {
    SCOPED_TRACE(name);
    std::vector<int32_t> y(dy_.size(), -77);
    kernel(y.data(), a_operand_, {b.data(), shapes_.b});
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_EQ(y[i], f(a_[Broadcast(i, shapes_.result, shapes_.a)],
                        b[Broadcast(i, shapes_.result, shapes_.b)])
                          ? 1
                          : 0);
    }
  };
  expect("Equal", Equal, [](float a, float b) { return a == b; });
  expect("Less", Less, [](float a, float b) { return a < b; });
  expect("LessOrEqual", LessOrEqual, [](float a, float b) { return a <= b; });
}

TEST_P(BroadcastTest, DerivativesSumWhatWasBroadcast) {
  const Shape &to_a = shapes_.a, &to_b = shapes_.b;
  Floats da(a_.size(), NAN), db(b_.size(), NAN);

  SumTo(da.data(), to_a, dy_operand_);
  ExpectClose(da, ExpectedGrad(to_a, [](double d, double, double) { return d; }), TermsOf(to_a));
  NegSumTo(db.data(), to_b, dy_operand_);
  ExpectClose(db, ExpectedGrad(to_b, [](double d, double, double) { return -d; }), TermsOf(to_b));
  MulGrad(da.data(), to_a, dy_operand_, b_operand_);
  ExpectClose(da, ExpectedGrad(to_a, [](double d, double, double b) { return d * b; }),
              TermsOf(to_a));
  MulGrad(db.data(), to_b, dy_operand_, a_operand_);
  ExpectClose(db, ExpectedGrad(to_b, [](double d, double a, double) { return d * a; }),
              TermsOf(to_b));
  DivGradA(da.data(), to_a, dy_operand_, b_operand_);
  ExpectClose(da, ExpectedGrad(to_a, [](double d, double, double b) { return d / b; }),
              TermsOf(to_a));
  DivGradB(db.data(), dy_operand_, a_operand_, b_operand_);
  ExpectClose(db, ExpectedGrad(to_b, [](double d, double a, double b) { return -d * a / b / b; }),
              TermsOf(to_b));
  PowGradA(da.data(), dy_operand_, a_operand_, b_operand_);
  ExpectClose(
      da,
      ExpectedGrad(to_a, [](double d, double a, double b) { return d * b * std::pow(a, b - 1); }),
      TermsOf(to_a));
  PowGradB(db.data(), dy_operand_, a_operand_, b_operand_);
  ExpectClose(db,
              ExpectedGrad(to_b, [](double d, double a,
                                    double b) { return d * std::pow(a, b) * std::log(a); }),
              4 * TermsOf(to_b));
  MinimumGrad(da.data(), dy_operand_, a_operand_, b_operand_);
  ExpectClose(da, ExpectedGrad(to_a, [](double d, double a, double b) { return a < b ? d : 0; }),
              TermsOf(to_a));
  MaximumGrad(db.data(), dy_operand_, b_operand_, a_operand_);
  ExpectClose(db, ExpectedGrad(to_b, [](double d, double a, double b) { return b > a ? d : 0; }),
              TermsOf(to_b));
}

TEST_P(BroadcastTest, WhereSelectsByConditionAndSplitsTheGradient) {
  std::vector<int32_t> condition = RandomIds(b_.size(), 2, 4);
  for (int32_t& c : condition) c *= -7;  // any number but 0 is true
  const Floats other = Normals(dy_.size(), 5);
  Floats y(dy_.size(), NAN), da(a_.size(), NAN), dother(dy_.size(), NAN);

  Where(y.data(), condition.data(), shapes_.b, a_operand_, {other.data(), shapes_.result});
  WhereGradA(da.data(), shapes_.a, dy_operand_, condition.data(), shapes_.b);
  WhereGradB(dother.data(), shapes_.result, dy_operand_, condition.data(), shapes_.b);

  std::vector<double> expected_da(a_.size(), 0.0);
  for (size_t i = 0; i < y.size(); ++i) {
    const int64_t from = Broadcast(i, shapes_.result, shapes_.a);
    const bool chosen = condition[Broadcast(i, shapes_.result, shapes_.b)] != 0;
    EXPECT_EQ(y[i], chosen ? a_[from] : other[i]);
    EXPECT_EQ(dother[i], chosen ? 0 : dy_[i]);
    expected_da[from] += chosen ? dy_[i] : 0;
  }
  ExpectClose(da, expected_da, TermsOf(shapes_.a));
}

TEST_P(BroadcastTest, ExpandRepeats) {
  std::vector<int32_t> x(a_.size()), y(dy_.size(), -1);
  std::iota(x.begin(), x.end(), 0x7F800000);  // as floats: infinity and NaNs
  Expand(y.data(), shapes_.result, x.data(), shapes_.a);
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_EQ(y[i], x[Broadcast(i, shapes_.result, shapes_.a)]);
  }
}

TEST_P(BroadcastTest, AnOperandOfTheResultsShapeMayBeOverwritten) {
  Floats y(dy_.size(), NAN), in_place = dy_;
  Sub(y.data(), dy_operand_, b_operand_);
  Sub(in_place.data(), {in_place.data(), shapes_.result}, b_operand_);
  EXPECT_EQ(in_place, y);
}

TEST_P(BroadcastTest, ThreadsDoNotChangeTheResult) {
  ExpectSameOnAnyThreads([&] {
    Floats da(a_.size(), NAN), db(b_.size(), NAN);
    PowGradA(da.data(), dy_operand_, a_operand_, b_operand_);
    MulGrad(db.data(), shapes_.b, dy_operand_, a_operand_);
    da.insert(da.end(), db.begin(), db.end());
    return da;
  });
}

TEST(PowTest, SpecialExponentsAndBasesAreThoseOfStdPow) {
  const Floats bases = {-2, 0, 0.5f, 3, NAN, -INFINITY};
  for (float exponent : {0.0f, 1.0f, 2.0f, 3.0f, -1.0f, 0.5f, -2.0f}) {
    Floats y(bases.size());
    const Shape shape = {6};
    Pow(y.data(), {bases.data(), shape}, {&exponent, {}});
    for (size_t i = 0; i < bases.size(); ++i) {
      const float expected = std::pow(bases[i], exponent);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(y[i]));
      } else {
        EXPECT_FLOAT_EQ(y[i], expected) << bases[i] << " to the " << exponent;
      }
    }
  }
}

TEST(MinimumTest, EqualsShareTheGradientAndNanStays) {
  const Floats a = {1, 2, 3, NAN, 1}, b = {2, 2, 2, 1, NAN}, dy = {8, 8, 8, 8, 8};
  const Shape shape = {5};
  Floats y(5), da(5);
  Minimum(y.data(), {a.data(), shape}, {b.data(), shape});
  EXPECT_EQ(Floats(y.begin(), y.begin() + 3), (Floats{1, 2, 2}));
  EXPECT_TRUE(std::isnan(y[3]) && std::isnan(y[4]));
  Maximum(y.data(), {a.data(), shape}, {b.data(), shape});
  EXPECT_EQ(Floats(y.begin(), y.begin() + 3), (Floats{2, 2, 3}));
  EXPECT_TRUE(std::isnan(y[3]) && std::isnan(y[4]));
  MinimumGrad(da.data(), {dy.data(), shape}, {a.data(), shape}, {b.data(), shape});
  EXPECT_EQ(Floats(da.begin(), da.begin() + 3), (Floats{8, 4, 0}));
  MaximumGrad(da.data(), {dy.data(), shape}, {a.data(), shape}, {b.data(), shape});
  EXPECT_EQ(Floats(da.begin(), da.begin() + 3), (Floats{0, 4, 8}));
}

TEST(ModTest, HasTheDivisorsSign) {
  const Floats a = {5.5f, -5.5f, 5.5f, -5.5f, 6, 0}, b = {2, 2, -2, -2, 3, -3};
  const Shape shape = {6};
  Floats y(6);
  Mod(y.data(), {a.data(), shape}, {b.data(), shape});
  EXPECT_EQ(y, (Floats{1.5f, 0.5f, -0.5f, -1.5f, 0, 0}));
  const std::vector<int32_t> c = {5, -5, 5, -5, 6, 0}, d = {3, 3, -3, -3, 0, 3};
  std::vector<int32_t> z(6);
  Mod(z.data(), {c.data(), shape}, {d.data(), shape});
  EXPECT_EQ(z, (std::vector<int32_t>{2, 1, -1, -2, 0, 0}));
}

TEST(IntegersTest, NegAndAbsWrapAround) {
  std::vector<int32_t> x(37, -5), y(37);
  x[0] = INT32_MIN;
  x[36] = INT32_MAX;
  Neg(y.data(), x.data(), 37);
  EXPECT_EQ(std::tuple(y[0], y[1], y[36]), std::tuple(INT32_MIN, 5, -INT32_MAX));
  Abs(y.data(), x.data(), 37);
  EXPECT_EQ(std::tuple(y[0], y[1], y[36]), std::tuple(INT32_MIN, 5, INT32_MAX));
}

// Tests bits that arithmetic would change: a signalling NaN becomes quiet, a subnormal becomes
// zero.
TEST(WhereTest, PassesAnyBits) {
  const std::vector<int32_t> condition = {1, 0, 1}, a = {0x7F800001}, b = {1};
  const Shape three = {3}, one = {1};
  std::vector<int32_t> y(3);
  Where(reinterpret_cast<float*>(y.data()), condition.data(), three,
        {reinterpret_cast<const float*>(a.data()), one},
        {reinterpret_cast<const float*>(b.data()), one});
  EXPECT_EQ(y, (std::vector<int32_t>{0x7F800001, 1, 0x7F800001}));
}

TEST(PowTest, DerivativesAtZeroAreFinite) {
  const float zero = 0, one = 1, two = 2;
  float gradient = NAN;
  PowGradA(&gradient, {&one, {}}, {&zero, {}}, {&two, {}});
  EXPECT_EQ(gradient, 0);
  PowGradA(&gradient, {&one, {}}, {&zero, {}}, {&zero, {}});
  EXPECT_EQ(gradient, 0);
  PowGradB(&gradient, {&one, {}}, {&zero, {}}, {&two, {}});
  EXPECT_EQ(gradient, 0);
}

TEST(AccumulateTest, TermsAreAddedInOrderAndAnyOfThemMayBeOverwritten) {
  for (int64_t n : {1, 1023, 1025, 40000}) {
    const std::array<Floats, 3> terms = {Normals(n, 1), Normals(n, 2), Normals(n, 3)};
    Floats expected(n);
    for (int64_t i = 0; i < n; ++i) expected[i] = (terms[0][i] + terms[1][i]) + terms[2][i];
    for (int overwritten = 0; overwritten < 3; ++overwritten) {
      std::array<Floats, 3> copies = terms;
      const std::array<const float*, 3> pointers = {copies[0].data(), copies[1].data(),
                                                    copies[2].data()};
      Accumulate(copies[overwritten].data(), pointers, n);
      EXPECT_EQ(copies[overwritten], expected);
    }
  }
}

TEST(ScaleTest, MultipliesInPlace) {
  Floats x = {1, -2, 3};
  Scale(x.data(), x.data(), 0.5f, 3);
  EXPECT_EQ(x, (Floats{0.5f, -1, 1.5f}));
}

// A sum of ones in float would stop at 2^24, because 2^24 + 1 rounds to 2^24.
TEST(SumTest, LongSumsDoNotStall) {
  const Floats ones(20'000'000, 1.0f);
  float sum = 0;
  SumTo(&sum, {}, {ones.data(), Shape{20'000'000}});
  EXPECT_EQ(sum, 20'000'000.0f);
  SumRows(&sum, ones.data(), 20'000'000, 1);
  EXPECT_EQ(sum, 20'000'000.0f);
  Floats columns(2);
  SumRows(columns.data(), ones.data(), 10'000'000, 2);
  EXPECT_EQ(columns, (Floats{10'000'000, 10'000'000}));
}

}  // namespace
}  // namespace muster::kernels::elementwise_test
