#include "lib/data/format/example.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "lib/status/status.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace muster {
namespace {

static_assert(std::endian::native == std::endian::little);

using WireBytes = absl::Span<const std::byte>;

// The messages. A SequenceExample also has field 2. Numbers may be packed into fields of bytes.
//
//   Example   { Features features = 1; }
//   Features  { map<string, Feature> feature = 1; }
//   entry     { string key = 1; Feature value = 2; }
//   Feature   { oneof { BytesList bytes = 1; FloatList floats = 2; Int64List integers = 3; } }
//   any list  { repeated ... value = 1; }
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

constexpr int kVarintBytesMax = 10;
constexpr size_t kFeaturesShown = 20, kNameBytesShown = 60;  // in a message
constexpr char kEndsEarly[] = "a field ends after the end of its message";
constexpr char kBadVarint[] = "a number has no end";

// An error as text, or nullptr. It is cheaper than a status in the loops over fields.
using Fault = const char*;

absl::Status ToStatus(Fault fault) {
  return fault == nullptr
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat("no sound tf.train.Example: ", fault));
}

// Reads a number and moves `at` behind it. Returns whether it ends before `end`. Numbers of more
// than 64 bits lose their upper bits, as in Protocol Buffers.
inline bool TakeVarint(const std::byte*& at, const std::byte* end, uint64_t& value) {
  if (at < end && std::to_integer<uint8_t>(*at) < 0x80) {
    value = std::to_integer<uint8_t>(*at++);
    return true;
  }
  value = 0;
  for (int i = 0; i < kVarintBytesMax && at < end; ++i) {
    const auto byte = std::to_integer<uint64_t>(*at++);
    value |= (byte & 0x7f) << (7 * i);
    if (byte < 0x80) return true;
  }
  return false;
}

struct Field {
  uint64_t number;
  uint32_t type;
  WireBytes bytes;  // of a field with a length, or of a fixed number
  uint64_t value;   // of a varint
};

// Calls `take` for each field of a message. It returns a fault. Ends with the first fault.
template <typename Take>
inline Fault ForEachField(WireBytes message, Take take) {
  const std::byte* at = message.data();
  const std::byte* const end = at + message.size();
  while (at < end) {
    uint64_t tag, length = 0;
    if (!TakeVarint(at, end, tag)) return kBadVarint;
    Field field{.number = tag >> 3, .type = static_cast<uint32_t>(tag & 7), .value = 0};
    if (field.number == 0 || field.number >= uint64_t{1} << 29)
      return "a field has no valid number";
    switch (field.type) {
      case kVarint:
        if (!TakeVarint(at, end, field.value)) return kBadVarint;
        break;
      case kLength:
        if (!TakeVarint(at, end, length)) return kBadVarint;
        break;
      case kFixed32:
        length = 4;
        break;
      case kFixed64:
        length = 8;
        break;
      default:
        return "a field has no valid type";
    }
    if (length > static_cast<uint64_t>(end - at)) return kEndsEarly;
    field.bytes = {at, static_cast<size_t>(length)};
    at += length;
    if (const Fault fault = take(field)) return fault;
  }
  return nullptr;
}

Fault ReadFeature(WireBytes message, Feature& feature) {
  return ForEachField(message, [&](const Field& field) -> Fault {
    if (field.number > 3) return nullptr;  // of a later version
    if (field.type != kLength) return "a feature has no list";
    if (feature.kind != Feature::Kind::kNoList) return "a feature has several lists";
    constexpr Feature::Kind kKinds[] = {Feature::Kind::kBytes, Feature::Kind::kFloats,
                                        Feature::Kind::kIntegers};
    feature.kind = kKinds[field.number - 1];
    feature.list = field.bytes;
    return nullptr;
  });
}

// Calls `note` with the name and the message of each feature.
template <typename Note>
inline Fault ForEachFeature(WireBytes example, Note note) {
  return ForEachField(example, [&](const Field& features) -> Fault {
    if (features.number == 2 && features.type == kLength) {
      return "it is a tf.train.SequenceExample, which no source reads";
    }
    if (features.number != 1) return nullptr;
    if (features.type != kLength) return "the features are no message";
    return ForEachField(features.bytes, [&](const Field& entry) -> Fault {
      if (entry.number != 1) return nullptr;
      if (entry.type != kLength) return "a feature is no message";
      absl::string_view name;
      WireBytes value;
      const Fault fault = ForEachField(entry.bytes, [&](const Field& part) -> Fault {
        if (part.number > 2) return nullptr;
        if (part.type != kLength) return "a feature has no name or no value";
        if (part.number == 1) {
          name = {reinterpret_cast<const char*>(part.bytes.data()), part.bytes.size()};
        } else {
          value = part.bytes;
        }
        return nullptr;
      });
      return fault != nullptr ? fault : note(name, value);
    });
  });
}

template <typename Number>
Number LoadNumber(const void* from) {
  Number number;
  std::memcpy(&number, from, sizeof(number));
  return number;
}

// Mixes the length, the first and the last bytes. Names that differ only between them share a hash,
// and are compared as text.
inline uint64_t HashOf(absl::string_view name) {
  uint64_t first = 0, last = 0;
  const char* text = name.data();
  const size_t bytes = name.size();
  if (bytes >= 8) {
    first = LoadNumber<uint64_t>(text);
    last = LoadNumber<uint64_t>(text + bytes - 8);
  } else if (bytes >= 4) {
    first = LoadNumber<uint32_t>(text);
    last = LoadNumber<uint32_t>(text + bytes - 4);
  } else if (bytes > 0) {
    first = static_cast<uint8_t>(text[0]) | static_cast<uint8_t>(text[bytes / 2]) << 8 |
            static_cast<uint8_t>(text[bytes - 1]) << 16;
  }
  const uint64_t mixed = (first + bytes) * 0x9e3779b97f4a7c15 ^ std::rotl(last, 29);
  return (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93;
}

constexpr uint64_t kContinues = 0x8080808080808080;

// Joins the lower seven bits of each byte.
inline uint64_t JoinSevens(uint64_t word) {
  word = (word & 0x007f007f007f007f) | (word & 0x7f007f007f007f00) >> 1;
  word = (word & 0x00003fff00003fff) | (word & 0x3fff00003fff0000) >> 2;
  return (word & 0x000000000fffffff) | (word & 0x0fffffff00000000) >> 4;
}

// Writes each byte of `word` as a number.
inline void StoreBytes(uint64_t word, int64_t* to) {
  for (int i = 0; i < 8; ++i) to[i] = static_cast<int64_t>(word >> (8 * i) & 0xff);
}

inline void StoreBytes(uint64_t word, int32_t* to) {
#if defined(__SSE2__)
  const __m128i zero = _mm_setzero_si128();
  const __m128i bytes = _mm_cvtsi64_si128(static_cast<int64_t>(word));
  const __m128i shorts = _mm_unpacklo_epi8(bytes, zero);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi16(shorts, zero));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 4), _mm_unpackhi_epi16(shorts, zero));
#else
  for (int i = 0; i < 8; ++i) to[i] = static_cast<int32_t>(word >> (8 * i) & 0xff);
#endif
}

// Numbers of a list, as they are read.
template <typename Number>
struct NumberSink {
  absl::Span<Number> to;
  int64_t count = 0;  // of the list, also of numbers that find no room
  uint64_t bits = 0;  // the bits that are set in any of the numbers

  int64_t room() const { return std::ssize(to) - count; }
  void Add(uint64_t value) {
    if (room() > 0) {
      to[count] = static_cast<Number>(value);
      bits |= value;
    }
    ++count;
  }
};

// Adds packed numbers.
template <typename Number>
Fault TakeVarints(WireBytes packed, NumberSink<Number>& sink) {
  const std::byte* at = packed.data();
  const std::byte* const end = at + packed.size();
  // Reads eight bytes at once. Branches that depend on the lengths of numbers would often be
  // mispredicted, so only words of eight and of more than four numbers have one.
  while (end - at >= 8 && sink.room() >= 8) {
    const auto word = LoadNumber<uint64_t>(at);
    const uint64_t ends = ~word & kContinues;
    Number* const out = sink.to.data() + sink.count;
    if (ends == kContinues) {
      StoreBytes(word, out);
      sink.bits |= 0x7f;
      sink.count += 8;
      at += 8;
      continue;
    }
    if (ends == 0) {
      uint64_t value;
      if (!TakeVarint(at, end, value)) return kBadVarint;
      sink.Add(value);
      continue;
    }
    const int rest = std::countl_zero(ends);  // bits of the last number, which goes on
    const uint64_t joined = JoinSevens(word & ~kContinues & ~uint64_t{0} >> rest);
    uint64_t last_bits = JoinSevens(ends >> 1);  // of the numbers in `joined`
    const auto count = static_cast<int64_t>((ends >> 7) * 0x0101010101010101 >> 56);
    int first_bit = 0;
    auto take = [&](int64_t i) {
      // Behind the last number there is a number without bits, because `joined` has 56.
      last_bits |= uint64_t{1} << 62;
      const uint64_t last = last_bits & -last_bits;
      const uint64_t value = (joined & (2 * last - 1)) >> first_bit;
      out[i] = static_cast<Number>(value);
      sink.bits |= value;
      first_bit = __builtin_ctzll(last) + 1;  // countr_zero() would check for 0, too
      last_bits &= last_bits - 1;
    };
    take(0);
    take(1);
    take(2);
    take(3);
    for (int64_t i = 4; i < count; ++i) take(i);
    sink.count += count;
    at += 8 - rest / 8;
  }
  for (uint64_t value; at < end && sink.room() > 0; sink.Add(value)) {
    if (!TakeVarint(at, end, value)) return kBadVarint;
  }
  if (at == end) return nullptr;
  if ((end[-1] & std::byte{0x80}) != std::byte{0}) return kBadVarint;
  for (; at < end; ++at) sink.count += (*at & std::byte{0x80}) == std::byte{0};
  return nullptr;
}

template <typename Number>
absl::Status ReadNumbers(const Feature& feature, NumberSink<Number>& sink) {
  CHECK(feature.kind == Feature::Kind::kIntegers);
  return ToStatus(ForEachField(feature.list, [&](const Field& field) -> Fault {
    if (field.number != 1) return nullptr;
    if (field.type == kLength) return TakeVarints(field.bytes, sink);
    if (field.type != kVarint) return "a list of integers has another type";
    sink.Add(field.value);
    return nullptr;
  }));
}

}  // namespace

absl::string_view ToText(Feature::Kind kind) {
  switch (kind) {
    case Feature::Kind::kMissing:
      return "missing";
    case Feature::Kind::kNoList:
      return "empty";
    case Feature::Kind::kBytes:
      return "bytes";
    case Feature::Kind::kFloats:
      return "floats";
    case Feature::Kind::kIntegers:
      return "integers";
  }
  return "";
}

FeatureFinder::FeatureFinder(std::vector<std::string> names)
    : names_(std::move(names)), slots_(std::bit_ceil(4 * names_.size() + 1)) {
  for (size_t i = 0; i < names_.size(); ++i) {
    const uint64_t hash = HashOf(names_[i]);
    size_t at = hash;
    for (; slots_[at & (slots_.size() - 1)].name >= 0; ++at) {
      CHECK_NE(names_[slots_[at & (slots_.size() - 1)].name], names_[i]);
    }
    slots_[at & (slots_.size() - 1)] = {.hash = hash, .name = static_cast<int>(i)};
  }
}

absl::Status FeatureFinder::Find(absl::Span<const std::byte> example,
                                 absl::Span<Feature> found) const {
  CHECK_EQ(found.size(), names_.size());
  std::fill(found.begin(), found.end(), Feature());
  return ToStatus(ForEachFeature(example, [&](absl::string_view name, WireBytes value) -> Fault {
    const uint64_t hash = HashOf(name);
    for (size_t at = hash;; ++at) {
      const Slot& slot = slots_[at & (slots_.size() - 1)];
      if (slot.name < 0) return nullptr;
      if (slot.hash != hash || names_[slot.name] != name) continue;
      Feature& feature = found[slot.name];
      feature = {.kind = Feature::Kind::kNoList};
      return ReadFeature(value, feature);
    }
  }));
}

absl::StatusOr<std::map<std::string, Feature>> AllFeatures(absl::Span<const std::byte> example) {
  std::map<std::string, Feature> features;
  RETURN_IF_ERROR(
      ToStatus(ForEachFeature(example, [&](absl::string_view name, WireBytes value) -> Fault {
        Feature& feature = features[std::string(name)];
        feature = {.kind = Feature::Kind::kNoList};
        return ReadFeature(value, feature);
      })));
  return features;
}

absl::StatusOr<std::string> DescribeFeatures(absl::Span<const std::byte> example) {
  ASSIGN_OR_RETURN(const auto features, AllFeatures(example));
  std::vector<std::string> shown;
  for (const auto& [name, feature] : features) {
    if (shown.size() == kFeaturesShown) break;
    shown.push_back(absl::StrCat(absl::CHexEscape(name.substr(0, kNameBytesShown)), " (",
                                 ToText(feature.kind), ")"));
  }
  const size_t others = features.size() - shown.size();
  return absl::StrCat(absl::StrJoin(shown, ", "),
                      others == 0 ? "" : absl::StrCat(" and ", others, " more"));
}

absl::StatusOr<int64_t> ReadFloats(const Feature& feature, absl::Span<float> to) {
  CHECK(feature.kind == Feature::Kind::kFloats);
  int64_t count = 0;
  RETURN_IF_ERROR(ToStatus(ForEachField(feature.list, [&](const Field& field) -> Fault {
    if (field.number != 1) return nullptr;
    if (field.type != kLength && field.type != kFixed32) return "a list of floats has another type";
    if (field.bytes.size() % sizeof(float) != 0) return "a list of floats ends within a float";
    const auto floats = static_cast<int64_t>(field.bytes.size() / sizeof(float));
    if (count < std::ssize(to)) {
      std::memcpy(to.data() + count, field.bytes.data(),
                  std::min(floats, std::ssize(to) - count) * sizeof(float));
    }
    count += floats;
    return nullptr;
  })));
  return count;
}

absl::StatusOr<int64_t> ReadIntegers(const Feature& feature, absl::Span<int64_t> to) {
  NumberSink<int64_t> sink{.to = to};
  RETURN_IF_ERROR(ReadNumbers(feature, sink));
  return sink.count;
}

absl::StatusOr<SmallIntegers> ReadSmallIntegers(const Feature& feature, absl::Span<int32_t> to) {
  NumberSink<int32_t> sink{.to = to};
  RETURN_IF_ERROR(ReadNumbers(feature, sink));
  return SmallIntegers{.count = sink.count, .fit = sink.bits < uint64_t{1} << 31};
}

absl::StatusOr<absl::Span<const std::byte>> ReadBytes(const Feature& feature) {
  CHECK(feature.kind == Feature::Kind::kBytes);
  int64_t count = 0;
  absl::Span<const std::byte> bytes;
  RETURN_IF_ERROR(ToStatus(ForEachField(feature.list, [&](const Field& field) -> Fault {
    if (field.number != 1) return nullptr;
    if (field.type != kLength) return "a list of bytes has another type";
    bytes = field.bytes;
    ++count;
    return nullptr;
  })));
  if (count == 1) return bytes;
  return absl::InvalidArgumentError(absl::StrCat("has ", count, " values of bytes, 1 is needed"));
}

}  // namespace muster
