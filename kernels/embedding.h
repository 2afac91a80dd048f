// Rows of a table by id, and the derivative: R ids, V table rows (vocabulary), C channels.
// Row-major f32, in parallel, bandwidth-bound.
#pragma once

#include <cstdint>
#include <optional>

namespace muster::kernels {

struct EmbeddingShape {
  int64_t rows;        // R
  int64_t vocabulary;  // V
  int64_t channels;    // C
  // With `first`, the table has the rows [first, first + V) of a larger one. Ids of other rows are
  // valid, give zeros and have no gradient.
  std::optional<int64_t> first = std::nullopt;
};

// Returns the position of the first id outside [begin, end), or -1 if there is none. Kernels that
// index by ids require that there is none.
int64_t FirstOutOfRange(const int32_t* ids, int64_t n, int64_t begin, int64_t end);

// y f32[R, C]: row r is table[ids[r]].
void Embedding(float* y, const int32_t* ids, const float* table, EmbeddingShape shape);

// dtable f32[V, C] = sum of the rows of dy f32[R, C] by id, in row order; rows of unused ids are
// zero.
void EmbeddingGrad(float* dtable, const float* dy, const int32_t* ids, EmbeddingShape shape);

}  // namespace muster::kernels
