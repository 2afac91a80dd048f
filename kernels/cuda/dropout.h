// Dropout by a counter-based generator. It drops the same elements as kernels/dropout.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

struct DropoutArguments {
  float rate;
  uint32_t threshold;
  int64_t salt;
};

// y = element kept ? x / (1 - rate) : 0 for the n elements of the run's samples. Element e of the
// global batch is dropped if word e mod 4 of Philox(seed, stream of salt and step, e / 4), shifted
// right by 8, is below `threshold` (DropoutThreshold(rate)). y may be x. Device memory, 16-byte
// aligned. Asynchronous on `stream`. Arithmetic-bound: ten rounds of Philox per 4 elements.
cudaError_t Dropout(void* y, const void* x, int64_t n, Type type, const DropoutArguments& arguments,
                    const RunNumbers* numbers, cudaStream_t stream);

// Dropout() of rows that are parts of longer rows: x has the columns [first, first + columns) of
// rows of `whole` elements. The run's samples divide the rows.
struct DropoutPart {
  int64_t columns;
  int64_t first;
  int64_t whole;
};
cudaError_t DropoutOfPart(void* y, const void* x, int64_t rows, const DropoutPart& part, Type type,
                          const DropoutArguments& arguments, const RunNumbers* numbers,
                          cudaStream_t stream);

}  // namespace muster::kernels::cuda
