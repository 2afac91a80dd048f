// The largest or smallest elements of each row (torch.topk), and the derivative. Row-major, f32, in
// parallel over the rows.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct TopKShape {
  int64_t rows;
  int64_t columns;  // fewer than 2^31
  int64_t chosen;   // of each row, at most all of them
  bool largest;     // else the smallest
};

// values f32[rows, chosen], best first, and the columns they come from: of equal values the one
// with the smaller column is better. NaN counts as larger than every number, as in PyTorch. Reads x
// once: bandwidth-bound when few are chosen.
void TopK(float* values, int32_t* index, const float* x, const TopKShape& shape);

// dx f32[rows, columns] = dy where it was chosen, else zero.
void TopKGrad(float* dx, const float* dy, const int32_t* index, const TopKShape& shape);

}  // namespace muster::kernels
