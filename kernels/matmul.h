// Products of batches of matrices and their derivatives. Row-major f32; the output does not overlap
// the inputs. Results repeat to the bit for the same number of threads (kernels/threads.h), and may
// differ in the last bits for another.
//
//   a, da   [..., M, K], or [..., K, M] if transposed
//   b, db   [..., K, N], or [..., N, K] if transposed
//   c, dc   [..., M, N]
#pragma once

#include <cstdint>
#include <vector>

namespace muster::kernels {

struct MatMulShape {
  int64_t rows;     // M
  int64_t columns;  // N
  int64_t inner;    // K
  // The leading dimensions of a and of b, which broadcast as in numpy; empty: one matrix.
  std::vector<int64_t> a_batch;
  std::vector<int64_t> b_batch;
  bool transpose_a = false;
  bool transpose_b = false;
};

// c = a b. Takes 2 M N K operations for each matrix of c: compute-bound unless the matrices are
// thin.
void MatMul(float* c, const float* a, const float* b, const MatMulShape& shape);

// The derivatives by a and b. Each sums over the dimensions along which its operand was broadcast,
// in the batch's order.
void MatMulGradA(float* da, const float* dc, const float* b, const MatMulShape& shape);
void MatMulGradB(float* db, const float* dc, const float* a, const MatMulShape& shape);

}  // namespace muster::kernels
