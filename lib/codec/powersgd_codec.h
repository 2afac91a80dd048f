// Sends two factors of low rank.
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

// A payload is f32 P^T[r, rows], then f32 Q^T[r, columns]. The chunk decodes to P Q^T. With M the
// chunk as a matrix and Q' the Q of the previous step, P is an orthonormal basis of M Q', and Q =
// M^T P. A column of M Q' that depends on earlier columns is 0 in P and Q. A gradient that is not
// finite makes every value NaN.
//
// This differs from the paper, which sums P over the workers before it computes Q and so needs two
// rounds. Here each worker factors its own chunk in one round, and the sum of W workers has rank W
// r. Each worker sends a projection of its own matrix, so error feedback works as in the paper.
int64_t PowerSgdBytes(int64_t rows, int64_t columns, int rank);

struct MatrixShape {
  int64_t rows;
  int64_t columns;
};

// The matrix shape of a chunk. If the chunk holds whole rows of its parameter (the first dimension
// counts them), those rows; otherwise nearly square. The last row lacks rows * columns - elements
// elements at its end.
MatrixShape MatrixOf(const v1::Parameter& parameter, const v1::PlanChunk& chunk);

// `seed` determines the first Q'.
std::unique_ptr<ChunkEncoder> MakePowerSgdEncoder(const WireFormat& format, uint64_t seed);

// Decodes `payload`. Never fails: any bytes decode to a gradient.
void DecodePowerSgd(const WireFormat& format, const std::byte* payload, float* gradient);

}  // namespace muster
