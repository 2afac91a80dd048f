#include "lib/data/format/npy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/data/data_fault.h"
#include "lib/data/format/compression.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kPreambleBytes = 8;         // magic, major, minor
constexpr size_t kHeaderBytesMax = 1 << 16;  // enough for a dictionary of three entries
constexpr size_t kDimensionsMax = 32;        // NumPy's own limit

struct TypeEntry {
  absl::string_view descr;
  NpyType type;
  absl::string_view name;
  int64_t bytes;
};
constexpr std::array<TypeEntry, 5> kTypes = {{{"<f4", NpyType::kF32, "f32", 4},
                                              {"<f8", NpyType::kF64, "f64", 8},
                                              {"<i4", NpyType::kI32, "i32", 4},
                                              {"<i8", NpyType::kI64, "i64", 8},
                                              {"|u1", NpyType::kU8, "u8", 1}}};

const TypeEntry& EntryOf(NpyType type) { return kTypes[static_cast<size_t>(type)]; }

// The header is a dictionary as Python writes it:
//   {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }
class HeaderReader {
 public:
  explicit HeaderReader(absl::string_view text) : rest_(text) {}

  struct Fields {
    std::optional<std::string> descr;
    std::optional<bool> fortran_order;
    std::optional<std::vector<int64_t>> shape;
  };

  // Returns nullopt if the text is not such a dictionary.
  std::optional<Fields> Read() {
    Fields fields;
    if (!Skip("{")) return std::nullopt;
    while (!Skip("}")) {
      const std::optional<std::string> key = Text();
      if (!key || !Skip(":") || !Value(*key, fields)) return std::nullopt;
      if (!Skip(",") && !Next("}")) return std::nullopt;
    }
    if (!absl::StripAsciiWhitespace(rest_).empty()) return std::nullopt;
    return fields;
  }

 private:
  bool Next(absl::string_view token) {
    rest_ = absl::StripLeadingAsciiWhitespace(rest_);
    return absl::StartsWith(rest_, token);
  }

  bool Skip(absl::string_view token) {
    if (!Next(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }

  std::optional<std::string> Text() {
    const bool single = Next("'");
    if (!single && !Next("\"")) return std::nullopt;
    const size_t end = rest_.find(rest_[0], 1);
    if (end == absl::string_view::npos) return std::nullopt;
    std::string text(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return text;
  }

  std::optional<int64_t> Number() {
    rest_ = absl::StripLeadingAsciiWhitespace(rest_);
    size_t digits = 0;
    while (digits < rest_.size() && absl::ascii_isdigit(rest_[digits])) ++digits;
    int64_t number = 0;
    if (!absl::SimpleAtoi(rest_.substr(0, digits), &number)) return std::nullopt;
    rest_.remove_prefix(digits);
    return number;
  }

  bool Value(const std::string& key, Fields& fields) {
    if (key == "descr") return (fields.descr = Text()).has_value();
    if (key == "fortran_order") {
      fields.fortran_order = Next("True");
      return Skip("True") || Skip("False");
    }
    return key == "shape" && Shape(fields.shape.emplace());
  }

  bool Shape(std::vector<int64_t>& shape) {
    if (!Skip("(")) return false;
    while (!Skip(")")) {
      const std::optional<int64_t> size = Number();
      if (!size || shape.size() == kDimensionsMax) return false;
      shape.push_back(*size);
      if (!Skip(",") && !Next(")")) return false;
    }
    return true;
  }

  absl::string_view rest_;
};

uint32_t LittleEndian(absl::Span<const std::byte> bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) value |= std::to_integer<uint32_t>(bytes[i]) << (8 * i);
  return value;
}

absl::Status CheckLayout(const HeaderReader::Fields& fields, const std::string& path,
                         absl::string_view field) {
  if (!fields.descr || !fields.fortran_order || !fields.shape) {
    return DataInvalid(field, absl::StrCat(path,
                                           ": the header lacks descr, fortran_order or "
                                           "shape; is it an array of records?"));
  }
  if (*fields.fortran_order) {
    return DataInvalid(field,
                       absl::StrCat(path,
                                    ": the array is in Fortran order; save numpy.ascontiguousarray("
                                    "array) instead"));
  }
  return absl::OkStatus();
}

absl::StatusOr<NpyType> TypeOf(const std::string& descr, const std::string& path,
                               absl::string_view field) {
  for (const TypeEntry& entry : kTypes) {
    if (descr == entry.descr) return entry.type;
  }
  return DataInvalid(field, absl::StrCat(path, ": elements are '", descr.substr(0, 20),
                                         "'; possible are float32, float64, int32, int64 "
                                         "(little-endian) and uint8: save array.astype('<f4'), "
                                         "or '<i4' for ids"));
}

template <typename From, typename To>
void Convert(const std::byte* from, std::byte* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * sizeof(From), sizeof(value));
    const To converted = static_cast<To>(value);
    std::memcpy(to + i * sizeof(To), &converted, sizeof(converted));
  }
}

template <typename To>
void ConvertTo(NpyType type, const std::byte* from, std::byte* to, int64_t count) {
  switch (type) {
    case NpyType::kF32:
      return Convert<float, To>(from, to, count);
    case NpyType::kF64:
      return Convert<double, To>(from, to, count);
    case NpyType::kI32:
      return Convert<int32_t, To>(from, to, count);
    case NpyType::kI64:
      return Convert<int64_t, To>(from, to, count);
    case NpyType::kU8:
      return Convert<uint8_t, To>(from, to, count);
  }
}

}  // namespace

absl::string_view NpyTypeName(NpyType type) { return EntryOf(type).name; }
int64_t NpyTypeBytes(NpyType type) { return EntryOf(type).bytes; }
void NpyToF32(NpyType type, const std::byte* from, std::byte* to, int64_t count) {
  ConvertTo<float>(type, from, to, count);
}
void NpyToI32(NpyType type, const std::byte* from, std::byte* to, int64_t count) {
  ConvertTo<int32_t>(type, from, to, count);
}
bool IsInteger(NpyType type) { return type != NpyType::kF32 && type != NpyType::kF64; }

absl::StatusOr<NpyHeader> ReadNpyHeader(absl::Span<const std::byte> bytes, const std::string& path,
                                        absl::string_view field) {
  return ReadNpyHeader(bytes, bytes.size(), path, field);
}

absl::StatusOr<NpyHeader> ReadNpyHeader(absl::Span<const std::byte> first, size_t file_bytes,
                                        const std::string& path, absl::string_view field) {
  const absl::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  if (!absl::StartsWith(text, kMagic.substr(0, std::min(text.size(), kMagic.size())))) {
    return DataInvalid(field, absl::StrCat(path, ": not an .npy file"));
  }
  if (first.size() < kPreambleBytes) {
    return DataTruncated(field, absl::StrCat(path, ": ", first.size(), " bytes"));
  }
  const int major = std::to_integer<int>(first[6]);
  if (major < 1 || major > 3) {
    return DataInvalid(field, absl::StrCat(path, ": format version ", major, ", known are 1 to 3"));
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  if (first.size() < kPreambleBytes + length_bytes) {
    return DataTruncated(field, absl::StrCat(path, ": ", first.size(), " bytes"));
  }
  const size_t length = LittleEndian(first.subspan(kPreambleBytes, length_bytes));
  NpyHeader header{.data_offset = kPreambleBytes + length_bytes + length};
  if (length > kHeaderBytesMax) {
    return DataInvalid(field, absl::StrCat(path, ": a header of ", length, " bytes, at most ",
                                           kHeaderBytesMax, " are possible"));
  }
  if (header.data_offset > first.size()) {
    return DataTruncated(field, absl::StrCat(path, ": ends inside its header"));
  }
  const auto fields = HeaderReader(text.substr(kPreambleBytes + length_bytes, length)).Read();
  if (!fields) return DataInvalid(field, absl::StrCat(path, ": the header cannot be read"));
  RETURN_IF_ERROR(CheckLayout(*fields, path, field));
  ASSIGN_OR_RETURN(header.type, TypeOf(*fields->descr, path, field));
  header.shape = *fields->shape;
  header.data_bytes = NpyTypeBytes(header.type);
  const size_t found = file_bytes - header.data_offset;
  for (const int64_t size : header.shape) {
    if (__builtin_mul_overflow(header.data_bytes, static_cast<size_t>(size), &header.data_bytes)) {
      return DataInvalid(
          field, absl::StrCat(path, ": [", absl::StrJoin(header.shape, ", "), "] is too large"));
    }
  }
  if (found < header.data_bytes) {
    return DataTruncated(field,
                         absl::StrCat(path, ": ", found, " of ", header.data_bytes, " bytes of [",
                                      absl::StrJoin(header.shape, ", "), "]"));
  }
  if (found > header.data_bytes) {
    return DataInvalid(
        field, absl::StrCat(path, ": ", found - header.data_bytes, " bytes follow the array"));
  }
  return header;
}

std::string MakeNpyHeader(NpyType type, absl::Span<const int64_t> shape) {
  constexpr size_t kAlignment = 64;
  std::string text =
      absl::StrCat("{'descr': '", EntryOf(type).descr, "', 'fortran_order': False, 'shape': (",
                   absl::StrJoin(shape, ", "), shape.size() == 1 ? ",), }" : "), }");
  // Spaces align the elements; the header ends with a line end.
  const size_t unaligned = (kPreambleBytes + 2 + text.size() + 1) % kAlignment;
  text.append((kAlignment - unaligned) % kAlignment, ' ');
  text.push_back('\n');
  const char preamble[] = {1, 0, static_cast<char>(text.size()),
                           static_cast<char>(text.size() >> 8)};
  return absl::StrCat(kMagic, absl::string_view(preamble, sizeof(preamble)), text);
}

absl::StatusOr<NpyFile> NpyFile::Open(const std::string& path, absl::string_view field) {
  ASSIGN_OR_RETURN(auto file, MappedFile::Open(path, field));
  RETURN_IF_ERROR(CheckUncompressed(file->bytes(), path, field));
  ASSIGN_OR_RETURN(NpyHeader header, ReadNpyHeader(file->bytes(), path, field));
  return NpyFile(std::move(file), std::move(header));
}

}  // namespace muster
