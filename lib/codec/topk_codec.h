// The elements of largest magnitude, and where they are.
//   Source: Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "lib/codec/codec.h"

namespace muster {

// u32 counts[B], then u16 positions[k], then bf16 values[k], for n elements in B blocks of 65,536:
// how many of the k elements are in each block; where in its block each is, ascending; what it is,
// rounded to the nearest. Exactly k travel: ties go to the lower index. The others are 0.
//
// Four bytes for each: a plain u32 index and f32 value would take eight, and the same bytes spent
// on twice as many elements carry more of the gradient. What rounding loses stays in the residual.
inline constexpr int64_t kTopKBlock = 65536;

int64_t TopKBytes(int64_t elements, int64_t kept);

// max(1, round(ratio * elements)).
int64_t KeptElements(double ratio, int64_t elements);

std::unique_ptr<ChunkEncoder> MakeTopKEncoder(const WireFormat& format);

// Refuses counts that do not add up to k or exceed their block, positions that do not ascend or lie
// beyond n, and infinities.
absl::Status DecodeTopK(const WireFormat& format, const std::byte* payload, float* gradient);

}  // namespace muster
