// Gradient compression: what a chunk's gradient becomes on the wire. docs/codecs.md has every
// layout byte by byte.
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

// How a chunk travels in one direction. A pure function of the plan: both ends compute it.
struct WireFormat {
  WireDType dtype = WireDType::kF32;  // kNone where codec is not kRaw
  WireCodec codec = WireCodec::kRaw;
  int64_t elements = 0;
  // kPowerSgd: the chunk as a matrix, row-major; the last row may be short (MatrixOf). Else 1, 0.
  int64_t rows = 1, columns = 0;
  int64_t kept = 0;   // kTopK: elements that travel
  int rank = 0;       // kPowerSgd
  int64_t bytes = 0;  // of the payload, exactly

  friend bool operator==(const WireFormat&, const WireFormat&) = default;
};

// Of pushes and of answers. Statistics, one-dimensional parameters and chunks that would not become
// smaller travel as f32 whatever the job says; so does everything of a local_sgd or allreduce job.
WireFormat PushFormat(const v1::JobPlan& plan, ChunkId chunk);
WireFormat ValuesFormat(const v1::JobPlan& plan, ChunkId chunk);

// Packs one chunk's gradients, step after step. Holds what error feedback needs (the residual, and
// for kPowerSgd the last factor), allocated at construction: nothing is afterwards. Bits of kOneBit
// and kPowerSgd may depend on the processor's instruction set; Decode's never do.
// Thread-compatible.
class ChunkEncoder {
 public:
  // `seed` makes the first factor of kPowerSgd.
  static std::unique_ptr<ChunkEncoder> Create(const WireFormat& format, uint64_t seed);
  virtual ~ChunkEncoder() = default;

  // gradient: f32[elements]; payload: format.bytes, aligned for float; they do not overlap. All
  // codecs but kRaw feed back their error: what is packed is gradient + residual, and what of that
  // Decode would not give back becomes the residual. A gradient that is not finite makes a payload
  // that decodes to one that is not finite, and clears the residual; the lossy codecs count
  // magnitudes from 2^127 as not finite.
  virtual void Encode(absl::Span<const float> gradient, absl::Span<std::byte> payload) = 0;

  // Bytes of state held beside the payload.
  virtual int64_t state_bytes() const = 0;
};

// gradient = what was packed. INVALID_ARGUMENT for bytes that no encoder of the format makes;
// `gradient` is undefined then. Any bytes are safe; `payload` is aligned for float. Thread-safe.
absl::Status Decode(const WireFormat& format, absl::Span<const std::byte> payload,
                    absl::Span<float> gradient);

}  // namespace muster
