// The data plane's message header: 64 bytes, little-endian. docs/protocol.md has a worked example.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace muster {

enum class MessageKind : uint8_t {
  // worker -> ps, or shard -> its replica: the first message; the answer is kHello. Between workers
  // of a ring: the sender has started.
  kHello = 1,
  // worker -> ps: the gradient of `chunk` for `step`; shard -> its replica: the summed gradient.
  kPush = 2,
  kParams = 3,   // ps -> worker: the value of `chunk` at version `step`
  kFetch = 4,    // worker -> ps: requests `chunk` at version `step`; the answer is kParams
  kRefused = 5,  // ps -> worker: `reason`; step and chunk are those of the refused message
  // shard -> shard 0: the sum of squares of the summed gradient of `step`, for each of its chunks.
  kSquares = 6,
  // shard 0 -> shard: `scalar` is the sum of squares of the whole summed gradient of `step`.
  kVerdict = 7,
  // shard -> shard 0: one bit per rank: this shard has all the rank's gradients of `step`.
  kArrived = 8,
  kClosed = 9,  // shard 0 -> shard: one bit per rank: `step` is the sum of these ranks' gradients
  kNorms = 10,  // shard -> shard 0: this shard's part of the trust ratios of `step`
  kTrust = 11,  // shard 0 -> shard: the trust ratio of every parameter, as f64
  kState = 12,  // shard -> its replica: one array of `chunk` at version `step`
  kHeld = 13,  // replica -> shard -> shard 0: it has `step`; shard 0 -> shard: every replica has it
};

enum class WireDType : uint8_t { kNone = 0, kF32 = 1, kF16 = 2, kBf16 = 3 };
// The packing of a gradient; lib/codec defines the formats. All except kRaw have the dtype kNone.
enum class WireCodec : uint8_t { kRaw = 0, kInt8 = 1, kTopK = 2, kOneBit = 3, kPowerSgd = 4 };

enum class RefusalReason : uint16_t {
  kNone = 0,
  kUnknownJob = 1,  // the job was released here, or has no such generation here yet
  kOldGeneration = 2,
  kWrongChunk = 3,  // this shard has no such chunk
  kWrongLength = 4,
  kWrongRank = 5,
  kWrongStep = 6,   // neither the step that the chunk awaits from this rank nor the one before
  kNotGreeted = 7,  // no HELLO came before it
  kBadHeader = 8,
  kBadPayload = 9,  // no encoder of the codec makes these bytes
  // bsp, with a program: another rank has named another learning rate for this step and chunk
  kOtherLearningRate = 10,
};
const char* RefusalReasonName(RefusalReason reason);

struct WireHeader {
  static constexpr uint32_t kMagic = 0x5453554d;  // "MUST"
  static constexpr uint16_t kVersion = 3;
  static constexpr size_t kBytes = 64;

  MessageKind kind = MessageKind::kHello;
  WireDType dtype = WireDType::kNone;
  WireCodec codec = WireCodec::kRaw;
  RefusalReason reason = RefusalReason::kNone;
  uint32_t generation = 0;
  uint64_t job = 0;  // JobPlan.job_number; with replicas of shards, the number of the session
  int64_t step = 0;
  uint32_t chunk = 0;
  uint32_t rank = 0;    // of the worker, in both directions; between shards: of the sending shard
  uint64_t length = 0;  // of the payload, in bytes
  // kParams: the sum of squares of this chunk's summed gradient. kVerdict: that of all chunks.
  // kState: which array. kPush of a job with a program (model.external), also to a replica: the
  // learning rate of the parameter. kPush to another replica: the trust ratio. Else 0.
  double scalar = 0;
  // kParams of an fp16 job: the factor on the loss of step `step`. kPush to a replica: the factor
  // on the summed gradient, or NaN if the step was skipped. kPush of a worker with a program: the
  // weight of its gradient, which the payload contains. Else 0.
  float loss_scale = 0;

  friend bool operator==(const WireHeader&, const WireHeader&) = default;
};

// Byte layout (offset, width): magic 0,4  version 4,2  kind 6,1  dtype 7,1  codec 8,1  zero 9,1
// reason 10,2 generation 12,4  job 16,8  step 24,8  chunk 32,4  rank 36,4  length 40,8  scalar 48,8
// loss_scale 56,4  crc32c(0..59) 60,4
std::array<std::byte, WireHeader::kBytes> EncodeHeader(const WireHeader& header);

// Returns INVALID_ARGUMENT for a wrong size, magic or version, for an unknown kind, dtype, codec or
// reason, and for a nonzero byte 9. Returns DATA_LOSS for a checksum mismatch. Reads only `bytes`.
absl::StatusOr<WireHeader> DecodeHeader(absl::Span<const std::byte> bytes);

}  // namespace muster
