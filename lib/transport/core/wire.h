// The data plane's message header: 64 bytes, little-endian. docs/protocol.md has a worked example.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace muster {

enum class MessageKind : uint8_t {
  kHello = 1,    // worker -> ps, which answers kHello; between workers of a ring: was started
  kPush = 2,     // worker -> ps: gradient of `chunk` for `step`
  kParams = 3,   // ps -> worker: value of `chunk` at version `step`
  kFetch = 4,    // worker -> ps: asks for `chunk` at version `step`; answered by kParams
  kRefused = 5,  // ps -> worker: `reason`; step and chunk as in what was refused
  kSquares = 6,  // shard -> shard 0: sum of squares of each of its chunks' gradients of `step`
  kVerdict = 7,  // shard 0 -> shard: `scalar`: of the whole gradient of `step`
  kArrived =
      8,  // shard -> shard 0: a bit per rank: all of its gradients of `step` are on this shard
  kClosed = 9,  // shard 0 -> shard: a bit per rank: `step` is these ranks' gradients
  kNorms = 10,  // shard -> shard 0: what the trust ratios of `step` need of it
  kTrust = 11,  // shard 0 -> shard: f64 trust ratio of every parameter
  kState = 12,  // shard -> its backup: an array of `chunk` at version `step`
  kHeld = 13,   // backup -> shard -> shard 0: `step` is held; shard 0 -> shard: everywhere
};

enum class WireDType : uint8_t { kNone = 0, kF32 = 1, kF16 = 2, kBf16 = 3 };
// How a gradient is packed: lib/codec has the formats. All but kRaw have the dtype kNone.
enum class WireCodec : uint8_t { kRaw = 0, kInt8 = 1, kTopK = 2, kOneBit = 3, kPowerSgd = 4 };

enum class RefusalReason : uint16_t {
  kNone = 0,
  kUnknownJob = 1,  // released, or not prepared yet
  kOldGeneration = 2,
  kWrongChunk = 3,  // no such chunk on this shard
  kWrongLength = 4,
  kWrongRank = 5,
  kWrongStep = 6,   // neither the shard's step nor the one before
  kNotGreeted = 7,  // no HELLO before it
  kBadHeader = 8,
  kBadPayload = 9,  // bytes that no encoder of the codec makes
};
const char* RefusalReasonName(RefusalReason reason);

struct WireHeader {
  static constexpr uint32_t kMagic = 0x5453554d;  // "MUST"
  static constexpr uint16_t kVersion = 2;
  static constexpr size_t kBytes = 64;

  MessageKind kind = MessageKind::kHello;
  WireDType dtype = WireDType::kNone;
  WireCodec codec = WireCodec::kRaw;
  RefusalReason reason = RefusalReason::kNone;
  uint32_t generation = 0;
  uint64_t job = 0;  // JobPlan.job_number
  int64_t step = 0;
  uint32_t chunk = 0;
  uint32_t rank = 0;     // of the worker, in both directions; between shards: the sending shard
  uint64_t length = 0;   // payload bytes
  double scalar = 0;     // kParams: sum of squares of the step's summed gradient of this chunk;
                         // kVerdict: of all chunks; else 0
  float loss_scale = 0;  // kParams of an fp16 job: for the gradient of step `step`; else 0

  friend bool operator==(const WireHeader&, const WireHeader&) = default;
};

// Byte layout (offset, width): magic 0,4  version 4,2  kind 6,1  dtype 7,1  codec 8,1  zero 9,1
// reason 10,2 generation 12,4  job 16,8  step 24,8  chunk 32,4  rank 36,4  length 40,8  scalar 48,8
// loss_scale 56,4  crc32c(0..59) 60,4
std::array<std::byte, WireHeader::kBytes> EncodeHeader(const WireHeader& header);

// INVALID_ARGUMENT on a wrong size, magic, version, kind or dtype; DATA_LOSS on a checksum
// mismatch. Touches only `bytes`.
absl::StatusOr<WireHeader> DecodeHeader(absl::Span<const std::byte> bytes);

}  // namespace muster
