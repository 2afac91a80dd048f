#include "lib/data/format/tar_writer.h"

#include "absl/strings/str_format.h"
#include "glog/logging.h"

namespace muster {
namespace {

constexpr int64_t kWrittenBlockBytes = 512;
constexpr size_t kNameBytesMax = 100;
constexpr int64_t kMemberBytesMax = int64_t{1} << 33;  // 11 octal digits
constexpr size_t kChecksumAt = 148, kChecksumBytes = 8;

}  // namespace

std::string TarHeader(absl::string_view name, int64_t bytes, char kind) {
  CHECK_LE(name.size(), kNameBytesMax) << name;
  CHECK(0 <= bytes && bytes < kMemberBytesMax) << bytes;
  std::string header(kWrittenBlockBytes, '\0');
  const auto put = [&](size_t at, absl::string_view text) {
    header.replace(at, text.size(), text.data(), text.size());
  };
  put(0, name);
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, absl::StrFormat("%011o", bytes));
  put(136, "00000000000");
  header[156] = kind;
  put(257, absl::string_view("ustar\00000", 8));
  SetTarChecksum(header);
  return header;
}

std::string TarPadding(int64_t bytes) {
  return std::string((kWrittenBlockBytes - bytes % kWrittenBlockBytes) % kWrittenBlockBytes, '\0');
}

std::string TarEnd() { return std::string(2 * kWrittenBlockBytes, '\0'); }

void SetTarChecksum(std::string& archive, size_t at) {
  CHECK_LE(at + kWrittenBlockBytes, archive.size());
  // The checksum itself counts as spaces.
  archive.replace(at + kChecksumAt, kChecksumBytes, kChecksumBytes, ' ');
  int sum = 0;
  for (size_t i = at; i < at + kWrittenBlockBytes; ++i)
    sum += static_cast<unsigned char>(archive[i]);
  archive.replace(at + kChecksumAt, kChecksumBytes,
                  absl::StrFormat("%06o", sum) + std::string("\0 ", 2));
}

}  // namespace muster
