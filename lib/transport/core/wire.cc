#include "lib/transport/core/wire.h"

#include <bit>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/transport/core/crc32c.h"

namespace muster {
namespace {

// The offset of each field; wire.h has the widths.
enum Offset : size_t {
  kMagicAt = 0,
  kVersionAt = 4,
  kKindAt = 6,
  kDTypeAt = 7,
  kCodecAt = 8,
  kZeroByteAt = 9,
  kReasonAt = 10,
  kGenerationAt = 12,
  kJobAt = 16,
  kStepAt = 24,
  kChunkAt = 32,
  kRankAt = 36,
  kLengthAt = 40,
  kScalarAt = 48,
  kLossScaleAt = 56,
  kChecksumAt = 60,
};

// Put and Get work byte by byte. On little-endian machines, compilers turn them into one move.
template <typename T>
void Put(std::byte* bytes, Offset at, T value) {
  static_assert(std::is_unsigned_v<T>);
  for (size_t i = 0; i < sizeof(T); ++i) bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
}

template <typename T>
T Get(const std::byte* bytes, Offset at) {
  static_assert(std::is_unsigned_v<T>);
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(std::to_integer<T>(bytes[at + i]) << (8 * i));
  }
  return value;
}

absl::Status Wrong(const char* field, uint64_t value) {
  return absl::InvalidArgumentError(absl::StrCat("wire header: unknown ", field, " ", value));
}

}  // namespace

const char* RefusalReasonName(RefusalReason reason) {
  switch (reason) {
    case RefusalReason::kNone:
      return "NONE";
    case RefusalReason::kUnknownJob:
      return "UNKNOWN_JOB";
    case RefusalReason::kOldGeneration:
      return "OLD_GENERATION";
    case RefusalReason::kWrongChunk:
      return "WRONG_CHUNK";
    case RefusalReason::kWrongLength:
      return "WRONG_LENGTH";
    case RefusalReason::kWrongRank:
      return "WRONG_RANK";
    case RefusalReason::kWrongStep:
      return "WRONG_STEP";
    case RefusalReason::kNotGreeted:
      return "NOT_GREETED";
    case RefusalReason::kBadHeader:
      return "BAD_HEADER";
    case RefusalReason::kBadPayload:
      return "BAD_PAYLOAD";
    case RefusalReason::kOtherLearningRate:
      return "OTHER_LEARNING_RATE";
  }
  return "UNKNOWN";
}

std::array<std::byte, WireHeader::kBytes> EncodeHeader(const WireHeader& header) {
  std::array<std::byte, WireHeader::kBytes> encoded;
  std::byte* bytes = encoded.data();
  Put(bytes, kMagicAt, WireHeader::kMagic);
  Put(bytes, kVersionAt, WireHeader::kVersion);
  Put(bytes, kKindAt, static_cast<uint8_t>(header.kind));
  Put(bytes, kDTypeAt, static_cast<uint8_t>(header.dtype));
  Put(bytes, kCodecAt, static_cast<uint8_t>(header.codec));
  Put(bytes, kZeroByteAt, uint8_t{0});
  Put(bytes, kReasonAt, static_cast<uint16_t>(header.reason));
  Put(bytes, kGenerationAt, header.generation);
  Put(bytes, kJobAt, header.job);
  Put(bytes, kStepAt, static_cast<uint64_t>(header.step));
  Put(bytes, kChunkAt, header.chunk);
  Put(bytes, kRankAt, header.rank);
  Put(bytes, kLengthAt, header.length);
  Put(bytes, kScalarAt, std::bit_cast<uint64_t>(header.scalar));
  Put(bytes, kLossScaleAt, std::bit_cast<uint32_t>(header.loss_scale));
  Put(bytes, kChecksumAt, Crc32c(absl::MakeConstSpan(bytes, kChecksumAt)));
  return encoded;
}

absl::StatusOr<WireHeader> DecodeHeader(absl::Span<const std::byte> span) {
  if (span.size() != WireHeader::kBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("wire header: ", span.size(), " bytes instead of ", WireHeader::kBytes));
  }
  const std::byte* bytes = span.data();
  // Magic and version come first: they decide whether the other fields have the meaning assumed
  // here.
  const uint32_t magic = Get<uint32_t>(bytes, kMagicAt);
  if (magic != WireHeader::kMagic) return Wrong("magic", magic);
  const uint16_t version = Get<uint16_t>(bytes, kVersionAt);
  if (version != WireHeader::kVersion) return Wrong("version", version);
  const uint32_t computed = Crc32c(span.first(kChecksumAt));
  const uint32_t stored = Get<uint32_t>(bytes, kChecksumAt);
  if (computed != stored) {
    return absl::DataLossError(absl::StrCat("wire header: checksum ", absl::Hex(computed),
                                            ", the header says ", absl::Hex(stored)));
  }
  const uint8_t kind = Get<uint8_t>(bytes, kKindAt);
  if (kind < static_cast<uint8_t>(MessageKind::kHello) ||
      kind > static_cast<uint8_t>(MessageKind::kHeld)) {
    return Wrong("kind", kind);
  }
  const uint8_t dtype = Get<uint8_t>(bytes, kDTypeAt);
  if (dtype > static_cast<uint8_t>(WireDType::kBf16)) return Wrong("dtype", dtype);
  const uint8_t codec = Get<uint8_t>(bytes, kCodecAt);
  if (codec > static_cast<uint8_t>(WireCodec::kPowerSgd)) return Wrong("codec", codec);
  const uint16_t reason = Get<uint16_t>(bytes, kReasonAt);
  if (reason > static_cast<uint16_t>(RefusalReason::kOtherLearningRate))
    return Wrong("reason", reason);
  if (const uint8_t zero = Get<uint8_t>(bytes, kZeroByteAt); zero != 0)
    return Wrong("byte 9", zero);
  return WireHeader{
      .kind = static_cast<MessageKind>(kind),
      .dtype = static_cast<WireDType>(dtype),
      .codec = static_cast<WireCodec>(codec),
      .reason = static_cast<RefusalReason>(reason),
      .generation = Get<uint32_t>(bytes, kGenerationAt),
      .job = Get<uint64_t>(bytes, kJobAt),
      .step = static_cast<int64_t>(Get<uint64_t>(bytes, kStepAt)),
      .chunk = Get<uint32_t>(bytes, kChunkAt),
      .rank = Get<uint32_t>(bytes, kRankAt),
      .length = Get<uint64_t>(bytes, kLengthAt),
      .scalar = std::bit_cast<double>(Get<uint64_t>(bytes, kScalarAt)),
      .loss_scale = std::bit_cast<float>(Get<uint32_t>(bytes, kLossScaleAt)),
  };
}

}  // namespace muster
