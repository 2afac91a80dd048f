// Sends the elements of largest magnitude, and their positions.
//   Source: Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "lib/codec/codec.h"

namespace muster {

// A payload is u32 counts[B], then u16 positions[k], then bf16 values[k], for n elements in B
// blocks of 65,536. A count is the number of the k elements in a block. A position is relative to
// the block; positions ascend. A value is rounded to nearest. Exactly k elements are sent; ties go
// to the lower index. The other elements are 0.
//
// That is four bytes per element. A plain u32 index and f32 value would take eight, and the same
// bytes spent on twice as many elements carry more of the gradient. The rounding error stays in the
// residual.
inline constexpr int64_t kTopKBlock = 65536;

int64_t TopKBytes(int64_t elements, int64_t kept);

// Returns round(ratio * elements), clamped to [1, elements].
int64_t KeptElements(double ratio, int64_t elements);

std::unique_ptr<ChunkEncoder> MakeTopKEncoder(const WireFormat& format);

// Returns INVALID_ARGUMENT for counts that do not add up to k or exceed their block, positions that
// do not ascend or exceed n, infinities, and a different NaN.
absl::Status DecodeTopK(const WireFormat& format, const std::byte* payload, float* gradient);

}  // namespace muster
