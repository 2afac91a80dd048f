#include "lib/codec/powersgd_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/philox.h"
#include "lib/codec/feedback_encoder.h"
#include "lib/plan/parameter_table.h"

namespace muster {
namespace {

constexpr int kRankMax = 64;
// A column counts as dependent on earlier ones if less than this part of it remains; rounding
// leaves that much.
constexpr double kDependent = 1e-5;

// Both factors of a payload, transposed.
template <typename Float>
struct Factors {
  Factors(const WireFormat& format, Float* payload)
      : p(payload), q(payload + format.rank * format.rows) {}

  Float* p;  // [rank, rows]
  Float* q;  // [rank, columns]
};

int64_t RowLength(const WireFormat& format, int64_t row) {
  return std::min(format.columns, format.elements - row * format.columns);
}

// The largest absolute value. Infinity and NaN count as larger than all numbers.
float Largest(const float* x, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFF);
  }
  return std::bit_cast<float>(largest);
}

double Norm(const float* x, int64_t n) { return std::sqrt(Loops().dot(x, x, n)); }

// Divides n elements of x by `divisor`. Division by 0 gives 0.
void DivideBy(float* x, float divisor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = divisor == 0 ? 0 : x[i] / divisor;
}

// Row `row` of P.
std::array<float, kRankMax> Weights(const WireFormat& format, const float* p, int64_t row) {
  std::array<float, kRankMax> weights;
  for (int c = 0; c < format.rank; ++c) weights[c] = p[c * format.rows + row];
  return weights;
}

class PowerSgdEncoder final : public FeedbackEncoder {
 public:
  PowerSgdEncoder(const WireFormat& format, uint64_t seed)
      : FeedbackEncoder(format), seed_(seed), last_q_(format.rank * format.columns) {
    for (int c = 0; c < format.rank; ++c) Draw(c);
  }

  int64_t state_bytes() const override {
    return FeedbackEncoder::state_bytes() + last_q_.size() * sizeof(float);
  }

 private:
  bool Pack(const float* gradient, float* sum, std::byte* payload) override {
    const Factors factors(format(), reinterpret_cast<float*>(payload));
    if (!Factorise(gradient, sum, factors)) {
      std::fill_n(factors.p, format().bytes / sizeof(float), kNotANumber);
      return false;
    }
    Subtract(factors, sum);
    KeepQ(factors);
    return true;
  }

  // M += gradient, then M ~ P Q^T. Returns false if any intermediate value is not finite.
  bool Factorise(const float* gradient, float* m, const Factors<float>& factors) const {
    if (Loops().accumulate(m, gradient, format().elements) >= kNotFinite) return false;
    MultiplyByLastQ(m, factors.p);
    if (!Orthonormalise(factors.p)) return false;
    MultiplyByP(m, factors);
    return std::isfinite(Largest(factors.q, format().rank * format().columns));
  }

  // P = M Q'
  void MultiplyByLastQ(const float* m, float* p) const {
    std::array<float, kRankMax> products;
    for (int64_t row = 0; row < format().rows; ++row) {
      Loops().multiply(products.data(), m + row * format().columns, last_q_.data(),
                       format().columns, format().rank, RowLength(format(), row));
      for (int c = 0; c < format().rank; ++c) p[c * format().rows + row] = products[c];
    }
  }

  // Gram-Schmidt, twice per column. Once would leave a part of the others if columns are nearly
  // parallel, and each step of power iteration makes them more so. Returns false if P is not
  // finite.
  bool Orthonormalise(float* p) const {
    const int64_t rows = format().rows;
    for (int c = 0; c < format().rank; ++c) {
      float* column = p + c * rows;
      const float largest = Largest(column, rows);
      if (!std::isfinite(largest)) return false;
      DivideBy(column, largest, rows);  // then squares neither overflow nor underflow
      const double before = Norm(column, rows);
      for (int pass = 0; pass < 2; ++pass) {
        for (int other = 0; other < c; ++other) {
          const double part = Loops().dot(p + other * rows, column, rows);
          Loops().add_scaled(column, p + other * rows, static_cast<float>(-part), rows);
        }
      }
      const double after = Norm(column, rows);
      DivideBy(column, after > kDependent * before ? static_cast<float>(after) : 0, rows);
    }
    return true;
  }

  // Q = M^T P
  void MultiplyByP(const float* m, const Factors<float>& factors) const {
    std::fill_n(factors.q, format().rank * format().columns, 0.0f);
    for (int64_t row = 0; row < format().rows; ++row) {
      const auto weights = Weights(format(), factors.p, row);
      Loops().add_outer(factors.q, m + row * format().columns, weights.data(), format().columns,
                        format().rank, RowLength(format(), row));
    }
  }

  // M -= P Q^T
  void Subtract(const Factors<float>& factors, float* m) const {
    for (int64_t row = 0; row < format().rows; ++row) {
      const auto weights = Weights(format(), factors.p, row);
      Loops().subtract_combined(m + row * format().columns, weights.data(), factors.q,
                                format().columns, format().rank, RowLength(format(), row));
    }
  }

  // Keeps Q as the start of the next step. Only its direction matters; a column that vanished has
  // none, so it is drawn again.
  void KeepQ(const Factors<float>& factors) {
    const int64_t columns = format().columns;
    for (int c = 0; c < format().rank; ++c) {
      const float* q = factors.q + c * columns;
      float* last_q = last_q_.data() + c * columns;
      const float largest = Largest(q, columns);
      std::copy_n(q, columns, last_q);
      DivideBy(last_q, largest, columns);
      if (largest == 0) Draw(c);
    }
  }

  // Draws column c of Q' from a standard normal distribution.
  void Draw(int c) {
    const int64_t columns = format().columns;
    for (int64_t j = 0; j < columns; ++j) {
      const auto words = kernels::RandomWords(seed_, draws_, j);
      last_q_[c * columns + j] = static_cast<float>(kernels::StandardNormal(words[0], words[1]));
    }
    ++draws_;
  }

  const uint64_t seed_;
  uint64_t draws_ = 0;
  std::vector<float> last_q_;  // Q'^T [rank, columns]
};

}  // namespace

int64_t PowerSgdBytes(int64_t rows, int64_t columns, int rank) {
  return (rows + columns) * rank * sizeof(float);
}

MatrixShape MatrixOf(const v1::Parameter& parameter, const v1::PlanChunk& chunk) {
  const int64_t elements = chunk.elements();
  const int64_t row = ElementCount(parameter) / std::max<int64_t>(1, parameter.shape(0));
  if (chunk.offset() % row == 0 && elements % row == 0) {
    return {.rows = elements / row, .columns = row};
  }
  const int64_t columns = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(elements))));
  return {.rows = (elements + columns - 1) / columns, .columns = columns};
}

std::unique_ptr<ChunkEncoder> MakePowerSgdEncoder(const WireFormat& format, uint64_t seed) {
  return std::make_unique<PowerSgdEncoder>(format, seed);
}

void DecodePowerSgd(const WireFormat& format, const std::byte* payload, float* gradient) {
  const Factors factors(format, reinterpret_cast<const float*>(payload));
  for (int64_t row = 0; row < format.rows; ++row) {
    const auto weights = Weights(format, factors.p, row);
    Loops().combine(gradient + row * format.columns, weights.data(), factors.q, format.columns,
                    format.rank, RowLength(format, row));
  }
}

}  // namespace muster
