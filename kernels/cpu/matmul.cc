#include "kernels/matmul.h"

#include <algorithm>
#include <array>
#include <span>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"

namespace muster::kernels {
namespace {

using Sizes = std::span<const int64_t>;

int64_t Product(Sizes sizes) {
  int64_t product = 1;
  for (int64_t size : sizes) product *= size;
  return product;
}

// A MatMulShape that refers to memory of its owner.
struct Problem {
  int64_t rows;
  int64_t columns;
  int64_t inner;
  Sizes a_batch;
  Sizes b_batch;
  bool transpose_a;
  bool transpose_b;
};

// If many matrices a share one b, merges them into one matrix a that has all of their rows.
Problem Simplify(const MatMulShape& s) {
  if (s.transpose_a || Product(s.b_batch) != 1) {
    return {s.rows, s.columns, s.inner, s.a_batch, s.b_batch, s.transpose_a, s.transpose_b};
  }
  return {Product(s.a_batch) * s.rows, s.columns, s.inner, {}, {}, false, s.transpose_b};
}

enum Operand { kA, kB };

// Maps matrix i of c to the matrices of a and b that produce it.
class Batch {
 public:
  explicit Batch(const Problem& s)
      : batches_{s.a_batch, s.b_batch}, rank_(std::max(s.a_batch.size(), s.b_batch.size())) {}

  int64_t size() const {
    int64_t size = 1;
    for (int d = 0; d < rank_; ++d) size *= Size(d);
    return size;
  }

  bool IsBroadcast(Operand operand) const { return Product(batches_[operand]) != size(); }

  int64_t IndexIn(Operand operand, int64_t i) const {
    int64_t index = 0, stride = 1;
    for (int d = rank_ - 1; d >= 0; --d) {
      const int64_t size = SizeIn(operand, d);
      if (size > 1) index += i % Size(d) * stride;
      stride *= size;
      i /= Size(d);
    }
    return index;
  }

  // Returns whether matrix i of c is the first one that uses its matrix of `operand`.
  bool IsFirstOf(Operand operand, int64_t i) const {
    for (int d = rank_ - 1; d >= 0; --d) {
      if (SizeIn(operand, d) == 1 && i % Size(d) != 0) return false;
      i /= Size(d);
    }
    return true;
  }

 private:
  int64_t SizeIn(Operand operand, int d) const {
    const Sizes batch = batches_[operand];
    const int own = d - (rank_ - static_cast<int>(batch.size()));
    return own < 0 ? 1 : batch[own];
  }
  int64_t Size(int d) const { return std::max(SizeIn(kA, d), SizeIn(kB, d)); }

  std::array<Sizes, 2> batches_;
  int rank_;
};

MatrixView A(const float* a, const Problem& s, int64_t matrix) {
  return {a + matrix * s.rows * s.inner, s.transpose_a ? s.rows : s.inner, s.transpose_a};
}
MatrixView B(const float* b, const Problem& s, int64_t matrix) {
  return {b + matrix * s.inner * s.columns, s.transpose_b ? s.inner : s.columns, s.transpose_b};
}
MatrixView C(const float* c, const Problem& s, int64_t matrix) {
  return {c + matrix * s.rows * s.columns, s.columns};
}

// Calls f(i) for every matrix of c. Many or small ones run in parallel. Few large ones run one
// after the other, each as a parallel product.
template <typename F>
void ForEachMatrix(const Batch& batch, const Problem& s, F f) {
  const int64_t n = batch.size(), products = s.rows * s.columns * s.inner;
  constexpr int64_t kLarge = 1 << 22;  // about 50 us
  constexpr int64_t kWorthATask = 1 << 18;
  if (products >= kLarge && n < 4 * ParallelThreads()) {
    for (int64_t i = 0; i < n; ++i) f(i);
    return;
  }
  ParallelFor(n, std::max<int64_t>(1, kWorthATask / products), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

// Calls f(i, mode) for every matrix of c. f assigns the gradient of `operand` or adds to it, as
// `mode` says.
template <typename F>
void ForEachShare(Operand operand, const Batch& batch, const Problem& s, F f) {
  if (!batch.IsBroadcast(operand)) {
    ForEachMatrix(batch, s, [&](int64_t i) { f(i, GemmMode::kAssign); });
    return;
  }
  for (int64_t i = 0; i < batch.size(); ++i) {
    f(i, batch.IsFirstOf(operand, i) ? GemmMode::kAssign : GemmMode::kAccumulate);
  }
}

}  // namespace

void MatMul(float* c, const float* a, const float* b, const MatMulShape& shape) {
  const Problem s = Simplify(shape);
  const Batch batch(s);
  ForEachMatrix(batch, s, [&](int64_t i) {
    Gemm(c + i * s.rows * s.columns, s.columns, A(a, s, batch.IndexIn(kA, i)),
         B(b, s, batch.IndexIn(kB, i)), {s.rows, s.columns, s.inner});
  });
}

void MatMulGradA(float* da, const float* dc, const float* b, const MatMulShape& shape) {
  const Problem s = Simplify(shape);
  const Batch batch(s);
  ForEachShare(kA, batch, s, [&](int64_t i, GemmMode mode) {
    const MatrixView grad = C(dc, s, i), other = B(b, s, batch.IndexIn(kB, i));
    float* out = da + batch.IndexIn(kA, i) * s.rows * s.inner;
    if (s.transpose_a) {
      Gemm(out, s.rows, other, grad.T(), {s.inner, s.rows, s.columns}, mode);
    } else {
      Gemm(out, s.inner, grad, other.T(), {s.rows, s.inner, s.columns}, mode);
    }
  });
}

void MatMulGradB(float* db, const float* dc, const float* a, const MatMulShape& shape) {
  const Problem s = Simplify(shape);
  const Batch batch(s);
  ForEachShare(kB, batch, s, [&](int64_t i, GemmMode mode) {
    const MatrixView grad = C(dc, s, i), other = A(a, s, batch.IndexIn(kA, i));
    float* out = db + batch.IndexIn(kB, i) * s.inner * s.columns;
    if (s.transpose_b) {
      Gemm(out, s.inner, grad.T(), other, {s.columns, s.inner, s.rows}, mode);
    } else {
      Gemm(out, s.columns, other.T(), grad, {s.inner, s.columns, s.rows}, mode);
    }
  });
}

}  // namespace muster::kernels
