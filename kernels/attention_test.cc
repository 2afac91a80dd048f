#include "kernels/attention.h"

#include <array>
#include <tuple>

#include "kernels/comparison.h"
#include "kernels/reference.h"

namespace muster::kernels::attention_test {
namespace {

using Doubles = std::vector<double>;

struct Case {
  AttentionShape shape;
  std::vector<int64_t> mask;  // dimensions; none: no mask
};

// Attention in float64. Its functions take q, k and v one after the other in one vector, because
// Gradient() needs a function of one argument.
class Reference {
 public:
  Reference(const AttentionShape& shape, const Floats& mask, const std::vector<int64_t>& d)
      : s_(shape), mask_(Wide(mask)), mask_dimensions_(d) {}

  int64_t q_size() const { return s_.batch * s_.queries * s_.channels; }
  int64_t k_size() const { return s_.batch * s_.keys * s_.channels; }
  int64_t v_size() const { return s_.batch * s_.keys * s_.values; }

  // Returns y and lse.
  std::pair<Doubles, Doubles> Forward(const Doubles& qkv) const {
    Doubles y(s_.batch * s_.queries * s_.values, 0.0), lse;
    const int64_t size = s_.channels / s_.heads, width = s_.values / s_.heads;
    for (int64_t b = 0; b < s_.batch; ++b)
      for (int64_t h = 0; h < s_.heads; ++h)
        for (int64_t t = 0; t < s_.queries; ++t) {
          const double* q = &qkv[(b * s_.queries + t) * s_.channels + h * size];
          Doubles scores;
          for (int64_t k = 0; k < s_.keys; ++k) {
            if (s_.causal && k > t + s_.keys - s_.queries) break;
            const double* key = &qkv[q_size() + (b * s_.keys + k) * s_.channels + h * size];
            double score = MaskAt(b, h, t, k);
            for (int64_t c = 0; c < size; ++c) score += s_.scale * q[c] * key[c];
            scores.push_back(score);
          }
          double sum = 0;
          for (double score : scores) sum += std::exp(score);
          lse.push_back(std::log(sum));
          for (size_t k = 0; k < scores.size() && sum > 0; ++k) {
            const double* value =
                &qkv[q_size() + k_size() + (b * s_.keys + k) * s_.values + h * width];
            for (int64_t c = 0; c < width; ++c) {
              y[(b * s_.queries + t) * s_.values + h * width + c] +=
                  std::exp(scores[k]) / sum * value[c];
            }
          }
        }
    return {y, lse};
  }

 private:
  double MaskAt(int64_t b, int64_t h, int64_t t, int64_t k) const {
    if (mask_.empty()) return 0;
    const auto& d = mask_dimensions_;
    return mask_[((b % d[0] * d[1] + h % d[1]) * d[2] + t % d[2]) * d[3] + k];
  }

  AttentionShape s_;
  Doubles mask_;
  std::vector<int64_t> mask_dimensions_;
};

Doubles Joined(const Floats& q, const Floats& k, const Floats& v) {
  Doubles all = Wide(q);
  all.insert(all.end(), k.begin(), k.end());
  all.insert(all.end(), v.begin(), v.end());
  return all;
}

class AttentionTest : public testing::TestWithParam<Case> {
 protected:
  void Forward() {
    Attention(y_.data(), lse_.data(), q_.data(), k_.data(), v_.data(), mask_, shape_);
  }
  void Backward() {
    AttentionGrad(dq_.data(), dk_.data(), dv_.data(), dy_.data(), q_.data(), k_.data(), v_.data(),
                  y_.data(), lse_.data(), mask_, shape_);
  }

  const AttentionShape shape_ = GetParam().shape;
  const Floats mask_values_ =
      GetParam().mask.empty() ? Floats() : Normals(Elements(GetParam().mask), 9);
  const AttentionMask mask_ = GetParam().mask.empty()
                                  ? AttentionMask()
                                  : AttentionMask(mask_values_.data(), GetParam().mask);
  const Reference reference_{shape_, mask_values_, GetParam().mask};
  const Floats q_ = Normals(reference_.q_size(), 1), k_ = Normals(reference_.k_size(), 2);
  const Floats v_ = Normals(reference_.v_size(), 3);
  const Floats dy_ = Normals(shape_.batch * shape_.queries * shape_.values, 4);
  Floats y_ = Floats(dy_.size(), NAN);
  Floats lse_ = Floats(shape_.batch * shape_.heads * shape_.queries, NAN);
  Floats dq_ = Floats(q_.size(), NAN), dk_ = Floats(k_.size(), NAN), dv_ = Floats(v_.size(), NAN);
};

AttentionShape Shape(int64_t batch, int64_t queries, int64_t keys, int64_t heads, int64_t channels,
                     int64_t values, bool causal) {
  return {batch, queries, keys, heads, channels, values, causal, 0.4f};
}

// Blocks have 64 queries and 512 keys. The cases are below, at and beyond these sizes.
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest,
                         testing::Values(Case{Shape(1, 1, 1, 1, 1, 1, false), {}},
                                         Case{Shape(2, 5, 7, 3, 6, 9, false), {}},
                                         Case{Shape(2, 5, 7, 3, 6, 3, true), {}},
                                         Case{Shape(1, 9, 4, 1, 3, 2, true), {}},
                                         Case{Shape(2, 5, 7, 2, 4, 4, false), {2, 1, 1, 7}},
                                         Case{Shape(2, 5, 5, 2, 4, 4, true), {1, 2, 5, 5}},
                                         Case{Shape(2, 5, 5, 2, 4, 4, false), {2, 2, 1, 5}},
                                         Case{Shape(1, 64, 64, 2, 6, 4, true), {}},
                                         Case{Shape(1, 65, 67, 1, 5, 3, true), {1, 1, 65, 67}},
                                         Case{Shape(1, 3, 515, 1, 2, 1, false), {}},
                                         Case{Shape(1, 3, 1030, 1, 1, 2, true), {1, 1, 3, 1030}}));

TEST_P(AttentionTest, ForwardMixesTheValuesByTheSoftmaxOfTheScores) {
  Forward();
  const auto [y, lse] = reference_.Forward(Joined(q_, k_, v_));
  ExpectClose(y_, y, shape_.keys);
  for (size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(lse[i])) {
      EXPECT_EQ(lse_[i], lse[i]);
    } else {
      EXPECT_NEAR(lse_[i], lse[i], 1e-5);
    }
  }
}

TEST_P(AttentionTest, DerivativesAreThoseOfTheFormula) {
  Forward();
  Backward();
  const Doubles expected = Gradient([&](const Doubles& x) { return reference_.Forward(x).first; },
                                    Joined(q_, k_, v_), Wide(dy_));
  const auto k_begin = expected.begin() + reference_.q_size();
  const auto v_begin = k_begin + reference_.k_size();
  ExpectClose(dv_, Doubles(v_begin, expected.end()), 4 * shape_.queries);
  // With a single key the scores have no derivative, so only rounding errors remain.
  const Doubles dq(expected.begin(), k_begin), dk(k_begin, v_begin);
  for (size_t i = 0; i < dq.size(); ++i) ASSERT_NEAR(dq_[i], dq[i], 1e-5);
  for (size_t i = 0; i < dk.size(); ++i) ASSERT_NEAR(dk_[i], dk[i], 1e-5 * shape_.queries);
}

TEST_P(AttentionTest, ThreadsDoNotChangeTheResult) {
  ExpectSameOnAnyThreads([&] {
    Forward();
    Backward();
    Floats all = y_;
    for (const Floats* part : {&dq_, &dk_, &dv_}) all.insert(all.end(), part->begin(), part->end());
    return all;
  });
}

TEST(SelfAttentionTest, ThePackedFormHasTheBitsOfTheSeparateOne) {
  for (int64_t time : {1, 7, 70}) {
    const int64_t batch = 2, channels = 6;
    const AttentionShape shape{batch, time, time, 3, channels, channels, true, 0.5f};
    const Floats qkv = Normals(batch * time * 3 * channels, 1);
    const Floats dy = Normals(batch * time * channels, 2);
    std::array<Floats, 3> parts;
    for (size_t i = 0; i < qkv.size(); ++i) parts[i / channels % 3].push_back(qkv[i]);
    Floats y(dy.size(), NAN), expected(dy.size(), NAN), lse(batch * 3 * time, NAN);
    Floats expected_lse = lse, dqkv(qkv.size(), NAN);
    std::array<Floats, 3> gradients = parts;

    SelfAttention(y.data(), lse.data(), qkv.data(), {}, shape);
    SelfAttentionGrad(dqkv.data(), dy.data(), qkv.data(), y.data(), lse.data(), {}, shape);
    Attention(expected.data(), expected_lse.data(), parts[0].data(), parts[1].data(),
              parts[2].data(), {}, shape);
    AttentionGrad(gradients[0].data(), gradients[1].data(), gradients[2].data(), dy.data(),
                  parts[0].data(), parts[1].data(), parts[2].data(), expected.data(),
                  expected_lse.data(), {}, shape);

    ExpectClose(y, Wide(expected));
    ExpectClose(lse, Wide(expected_lse));
    std::array<Floats, 3> split;
    for (size_t i = 0; i < dqkv.size(); ++i) split[i / channels % 3].push_back(dqkv[i]);
    for (int i = 0; i < 3; ++i) ExpectClose(split[i], Wide(gradients[i]), 64);
  }
}

TEST(AttentionTest, AQueryWhoseKeysAreAllMaskedGivesZerosAndNoGradient) {
  const AttentionShape shape{1, 2, 3, 1, 2, 2, false, 1.0f};
  const Floats q = Normals(4, 1), k = Normals(6, 2), v = Normals(6, 3), dy = Normals(4, 4);
  const Floats mask = {-INFINITY, -INFINITY, -INFINITY, 0, -INFINITY, 0};
  const std::vector<int64_t> dimensions = {1, 1, 2, 3};
  Floats y(4, NAN), lse(2, NAN), dq(4, NAN), dk(6, NAN), dv(6, NAN);
  Attention(y.data(), lse.data(), q.data(), k.data(), v.data(), {mask.data(), dimensions}, shape);
  AttentionGrad(dq.data(), dk.data(), dv.data(), dy.data(), q.data(), k.data(), v.data(), y.data(),
                lse.data(), {mask.data(), dimensions}, shape);
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(lse[0], -INFINITY);
  EXPECT_EQ(dq[0], 0);
  EXPECT_EQ(dv[2], 0);  // the key that no query sees
  EXPECT_TRUE(std::isfinite(y[2]) && std::isfinite(dq[2]) && std::isfinite(dv[0]));
}

// A NaN score must reach the loss, also if all other keys are masked. The NaN is in the first block
// of keys, in a later one, or in every key.
TEST(AttentionTest, AScoreThatIsNanStaysNan) {
  for (const int64_t keys : {1, 3, 40, 515, 1030}) {
    for (const int64_t nan : {int64_t{0}, keys / 2, keys - 1, int64_t{-1}}) {  // -1: all keys
      for (const bool masked : {false, true}) {  // the keys that are numbers
        SCOPED_TRACE(testing::Message() << keys << " keys, NaN " << nan << ", masked " << masked);
        const AttentionShape shape{1, 1, keys, 1, 2, 2, false, 1.0f};
        const Floats q = Normals(2, 1), v = Normals(2 * keys, 3), dy = Normals(2, 4);
        Floats k = Normals(2 * keys, 2), mask(keys, masked ? -INFINITY : 0.0f);
        for (int64_t i = 0; i < keys; ++i) {
          if (nan >= 0 && i != nan) continue;
          k[2 * i] = NAN;
          mask[i] = 0;
        }
        const std::vector<int64_t> dimensions = {1, 1, 1, keys};
        Floats y(2), lse(1), dq(2), dk(2 * keys), dv(2 * keys);
        Attention(y.data(), lse.data(), q.data(), k.data(), v.data(), {mask.data(), dimensions},
                  shape);
        AttentionGrad(dq.data(), dk.data(), dv.data(), dy.data(), q.data(), k.data(), v.data(),
                      y.data(), lse.data(), {mask.data(), dimensions}, shape);
        EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]) && std::isnan(lse[0]));
        EXPECT_TRUE(std::isnan(dq[0]) && std::isnan(dv[2 * std::max<int64_t>(nan, 0)]));
      }
    }
  }
}

}  // namespace
}  // namespace muster::kernels::attention_test
