#include "lib/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/checkpoint/disk_file.h"
#include "lib/checkpoint/strict_json.h"
#include "lib/status/status.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

static_assert(std::endian::native == std::endian::little, "file and memory share a byte order");

constexpr int64_t kPrefixBytes = 8;
constexpr int64_t kHeaderBytesMax = 100'000'000;
constexpr size_t kDimensionsMax = 64;  // of a shape; numpy arrays have no more
constexpr char kMetadataKey[] = "__metadata__";

// Returns the bytes of one element; 0 for a type that the format does not have.
int64_t ElementBytes(absl::string_view dtype) {
  static const auto* const kBytes = new absl::flat_hash_map<absl::string_view, int64_t>{
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
      {"U32", 4},  {"F32", 4}, {"I64", 8}, {"U64", 8},     {"F64", 8}};
  auto found = kBytes->find(dtype);
  return found == kBytes->end() ? 0 : found->second;
}

// Returns nullopt if the product overflows.
std::optional<int64_t> TensorBytes(const TensorEntry& tensor) {
  int64_t bytes = ElementBytes(tensor.dtype);
  for (int64_t dimension : tensor.shape) {
    if (dimension != 0 && bytes > std::numeric_limits<int64_t>::max() / dimension) {
      return std::nullopt;
    }
    bytes *= dimension;
  }
  return bytes;
}

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": header at offset ", kPrefixBytes, ": ", what));
}

// Parses one member of the header object: name -> {dtype, shape, data_offsets}. Offsets still count
// from the first tensor byte.
absl::StatusOr<TensorEntry> ParseTensor(const std::string& name, const nlohmann::json& value) {
  auto fault = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat("tensor '", name, "': ", what));
  };
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets")) {
    return fault("needs exactly dtype, shape and data_offsets");
  }
  TensorEntry tensor{.name = name};
  if (!value["dtype"].is_string()) return fault("dtype is not a string");
  tensor.dtype = value["dtype"].get<std::string>();
  if (ElementBytes(tensor.dtype) == 0)
    return fault(absl::StrCat("unknown dtype '", tensor.dtype, "'"));
  if (!value["shape"].is_array()) return fault("shape is not an array");
  if (value["shape"].size() > kDimensionsMax) {
    return fault(absl::StrCat("shape has ", value["shape"].size(), " dimensions; ", kDimensionsMax,
                              " is the most"));
  }
  for (const nlohmann::json& dimension : value["shape"]) {
    std::optional<int64_t> size = NonNegativeInteger(dimension);
    if (!size) return fault("shape is not of non-negative integers");
    tensor.shape.push_back(*size);
  }
  const nlohmann::json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) return fault("data_offsets is not a pair");
  std::optional<int64_t> begin = NonNegativeInteger(offsets[0]),
                         end = NonNegativeInteger(offsets[1]);
  if (!begin || !end || *begin > *end) return fault("data_offsets is not an ascending pair");
  tensor.offset = *begin;
  tensor.bytes = *end - *begin;
  if (TensorBytes(tensor) != tensor.bytes) {
    return fault(absl::StrCat("has ", tensor.bytes, " bytes, its shape and dtype say otherwise"));
  }
  return tensor;
}

absl::StatusOr<SafetensorsHeader> ParseHeader(absl::string_view text, int64_t data_bytes) {
  if (text.empty() || text[0] != '{') return absl::DataLossError("does not begin with '{'");
  absl::StatusOr<nlohmann::json> json = ParseStrictJson(text);
  if (!json.ok()) return absl::DataLossError(json.status().message());
  SafetensorsHeader header;
  for (const auto& [name, value] : json->items()) {
    if (name != kMetadataKey) {
      ASSIGN_OR_RETURN(TensorEntry tensor, ParseTensor(name, value));
      header.tensors.push_back(std::move(tensor));
      continue;
    }
    if (!value.is_object()) return absl::DataLossError("__metadata__ is not an object");
    for (const auto& [key, entry] : value.items()) {
      if (!entry.is_string()) {
        return absl::DataLossError(absl::StrCat("__metadata__ '", key, "' is not a string"));
      }
      header.metadata[key] = entry.get<std::string>();
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  int64_t next = 0;
  for (TensorEntry& tensor : header.tensors) {
    if (tensor.offset != next) {
      return absl::DataLossError(absl::StrCat("tensor '", tensor.name, "' begins at ",
                                              tensor.offset, ", expected ", next));
    }
    if (tensor.bytes > data_bytes - next) {
      return absl::DataLossError(absl::StrCat("tensor '", tensor.name, "' ends beyond the file"));
    }
    next += tensor.bytes;
    tensor.offset += kPrefixBytes + text.size();
  }
  if (next != data_bytes) {
    return absl::DataLossError(absl::StrCat("tensors take ", next, " of ", data_bytes, " bytes"));
  }
  return header;
}

}  // namespace

const TensorEntry* SafetensorsHeader::Find(absl::string_view name) const {
  for (const TensorEntry& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

std::string EncodeSafetensorsHeader(SafetensorsHeader& header) {
  nlohmann::ordered_json json;
  if (!header.metadata.empty()) {
    nlohmann::ordered_json& metadata = json[kMetadataKey] = nlohmann::ordered_json::object();
    for (const auto& [key, value] : header.metadata) metadata[key] = value;
  }
  int64_t next = 0;
  for (TensorEntry& tensor : header.tensors) {
    std::optional<int64_t> bytes = TensorBytes(tensor);
    CHECK(ElementBytes(tensor.dtype) > 0 && bytes) << tensor.name << ": " << tensor.dtype;
    tensor.offset = next;
    tensor.bytes = *bytes;
    next += *bytes;
    json[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.offset, next}}};
  }
  using json_t = nlohmann::ordered_json;
  std::string text = json.dump(-1, ' ', false, json_t::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string encoded(kPrefixBytes, '\0');
  std::memcpy(encoded.data(), &length, kPrefixBytes);
  encoded += text;
  for (TensorEntry& tensor : header.tensors) tensor.offset += encoded.size();
  header.file_bytes = encoded.size() + next;
  return encoded;
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const std::string& path) {
  ASSIGN_OR_RETURN(DiskFile file, DiskFile::OpenToRead(path));
  ASSIGN_OR_RETURN(const int64_t file_bytes, file.Size());
  uint64_t length = 0;
  RETURN_IF_ERROR(file.ReadAt(0, {reinterpret_cast<std::byte*>(&length), kPrefixBytes}));
  if (length > static_cast<uint64_t>(std::min(kHeaderBytesMax, file_bytes - kPrefixBytes))) {
    return absl::DataLossError(absl::StrCat(path, ": header length at offset 0 is ", length,
                                            "; the file has ", file_bytes, " bytes and ",
                                            kHeaderBytesMax, " is the most"));
  }
  std::string text(length, '\0');
  RETURN_IF_ERROR(
      file.ReadAt(kPrefixBytes, {reinterpret_cast<std::byte*>(text.data()), text.size()}));
  const int64_t data_bytes = file_bytes - kPrefixBytes - static_cast<int64_t>(length);
  absl::StatusOr<SafetensorsHeader> header = ParseHeader(text, data_bytes);
  if (!header.ok()) return Damaged(path, header.status().message());
  header->file_bytes = file_bytes;
  return header;
}

absl::Status ReadFileRange(const std::string& path, int64_t offset, int64_t bytes, void* out) {
  ASSIGN_OR_RETURN(DiskFile file, DiskFile::OpenToRead(path));
  return file.ReadAt(offset, {static_cast<std::byte*>(out), static_cast<size_t>(bytes)});
}

}  // namespace muster
