// Gradient compression: converts a chunk's gradient to the bytes on the wire and back.
// docs/codecs.md specifies every layout byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/plan/numbers.h"
#include "lib/transport/core/wire.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// How a chunk is encoded in one direction. It depends only on the plan, so both ends compute the
// same format.
struct WireFormat {
  WireDType dtype = WireDType::kF32;  // kNone unless codec is kRaw
  WireCodec codec = WireCodec::kRaw;
  int64_t elements = 0;
  // kPowerSgd: the chunk as a row-major matrix; the last row may be short (MatrixOf). Otherwise 1
  // and 0.
  int64_t rows = 1, columns = 0;
  int64_t kept = 0;   // kTopK: number of elements sent
  int rank = 0;       // kPowerSgd
  int64_t bytes = 0;  // exact size of the payload

  friend bool operator==(const WireFormat&, const WireFormat&) = default;
};

// The formats of pushes and of answers. Some chunks are always sent as f32: statistics,
// one-dimensional parameters, chunks that would not shrink, and everything in local_sgd and
// allreduce jobs.
WireFormat PushFormat(const v1::JobPlan& plan, ChunkId chunk);
WireFormat ValuesFormat(const v1::JobPlan& plan, ChunkId chunk);

// Packs one chunk's gradients, step after step. Holds the state of error feedback: the residual
// and, for kPowerSgd, the last factor. Allocates only at construction. Thread-compatible. The bits
// of kOneBit and kPowerSgd may depend on the processor's instruction set; those of Decode never do.
class ChunkEncoder {
 public:
  // `seed` determines the first factor of kPowerSgd.
  static std::unique_ptr<ChunkEncoder> Create(const WireFormat& format, uint64_t seed);
  virtual ~ChunkEncoder() = default;

  // Packs one gradient, f32[elements]. `payload` has format.bytes bytes, aligned for float. The two
  // must not overlap.
  //
  // All codecs except kRaw feed back their error: they pack gradient + residual, and the part that
  // Decode would not restore becomes the next residual. A gradient that is not finite gives a
  // payload that decodes to one that is not finite, and clears the residual. kInt8, kTopK and
  // kPowerSgd treat magnitudes from 2^127 on as not finite. kOneBit treats a block as not finite if
  // its sums overflow.
  virtual void Encode(absl::Span<const float> gradient, absl::Span<std::byte> payload) = 0;

  // Returns the bytes of state held beside the payload.
  virtual int64_t state_bytes() const = 0;
};

// gradient = the packed values. Any bytes are safe to decode. `payload` must be aligned for float.
// Thread-safe. Returns INVALID_ARGUMENT for bytes that no encoder of the format produces;
// `gradient` is then undefined.
absl::Status Decode(const WireFormat& format, absl::Span<const std::byte> payload,
                    absl::Span<float> gradient);

}  // namespace muster
