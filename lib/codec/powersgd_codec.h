// Two factors of low rank.
//   Source: Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient compression for
//   distributed optimization", NeurIPS 2019.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "lib/codec/codec.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// f32 P^T[r, rows], then f32 Q^T[r, columns]: the chunk becomes P Q^T, where P is an orthonormal
// basis of M Q' (M the chunk as a matrix, Q' the Q of the step before) and Q = M^T P. A column of M
// Q' that depends on those before it is 0 in P and Q. A gradient that is not finite makes all NaN.
//
// Not as in the paper: there P is summed over the workers before Q is computed, which takes two
// rounds; here each worker factors its own chunk in one round, and the sum of W workers has rank W
// r. Each worker's part is a projection of its own matrix, so that error feedback holds as it does
// there.
int64_t PowerSgdBytes(int64_t rows, int64_t columns, int rank);

struct MatrixShape {
  int64_t rows;
  int64_t columns;
};

// Of a chunk that holds whole rows of its parameter (the first dimension counts them): those; else
// nearly square. The last row lacks rows * columns - elements elements at its end.
MatrixShape MatrixOf(const v1::Parameter& parameter, const v1::PlanChunk& chunk);

// `seed` makes the first Q'.
std::unique_ptr<ChunkEncoder> MakePowerSgdEncoder(const WireFormat& format, uint64_t seed);

// Any bytes are some gradient.
void DecodePowerSgd(const WireFormat& format, const std::byte* payload, float* gradient);

}  // namespace muster
