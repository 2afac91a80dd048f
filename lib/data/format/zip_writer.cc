#include "lib/data/format/zip_writer.h"

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace muster {
namespace {

constexpr uint64_t kSaturated = 0xffffffff;
constexpr uint16_t kVersion = 45;           // the first one with zip64
constexpr uint16_t kFirstDay = 1 << 5 | 1;  // 1 January 1980, so that equal input gives equal bytes

std::string Little(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

}  // namespace

std::string ZipWriter::Next(absl::string_view name, uint32_t crc, uint64_t bytes) {
  CHECK_LE(name.size(), 0xffff);
  const std::string sizes = Little(bytes, 8) + Little(bytes, 8);
  const std::string facts = Little(0, 2) + Little(0, 2) + Little(0, 2) + Little(kFirstDay, 2) +
                            Little(crc, 4);  // flags, method, time, day
  const std::string local = absl::StrCat(
      "PK\x03\x04", Little(kVersion, 2), facts, Little(kSaturated, 4), Little(kSaturated, 4),
      Little(name.size(), 2), Little(20, 2), name, Little(1, 2), Little(16, 2), sizes);
  absl::StrAppend(&directory_, "PK\x01\x02", Little(kVersion, 2), Little(kVersion, 2), facts,
                  Little(kSaturated, 4), Little(kSaturated, 4), Little(name.size(), 2),
                  Little(28, 2), std::string(6, '\0'));
  absl::StrAppend(&directory_, Little(0600u << 16, 4), Little(kSaturated, 4), name, Little(1, 2),
                  Little(24, 2), sizes, Little(offset_, 8));
  ++members_;
  offset_ += local.size() + bytes;
  return local;
}

// Every number is in its zip64 form, so archives of all sizes have one layout.
std::string ZipWriter::End() const {
  const std::string end64 = absl::StrCat(
      "PK\x06\x06", Little(44, 8), Little(kVersion, 2), Little(kVersion, 2), std::string(8, '\0'),
      Little(members_, 8), Little(members_, 8), Little(directory_.size(), 8), Little(offset_, 8));
  const std::string locator = absl::StrCat("PK\x06\x07", Little(0, 4),
                                           Little(offset_ + directory_.size(), 8), Little(1, 4));
  return absl::StrCat(directory_, end64, locator, "PK\x05\x06", Little(0, 4), Little(0xffff, 2),
                      Little(0xffff, 2), Little(kSaturated, 4), Little(kSaturated, 4),
                      Little(0, 2));
}

}  // namespace muster
