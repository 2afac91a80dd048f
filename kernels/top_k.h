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

// Writes values f32[rows, chosen], best first, and index i32[rows, chosen], the columns of the
// values. Of equal values the one with the smaller column is better. NaN counts as larger than
// every number, as in PyTorch. Reads x once: bandwidth-bound if few are chosen.
void TopK(float* values, int32_t* index, const float* x, const TopKShape& shape);

// dx f32[rows, columns] is dy for the chosen elements, and zero for the others.
void TopKGrad(float* dx, const float* dy, const int32_t* index, const TopKShape& shape);

}  // namespace muster::kernels
