#include "lib/transport/core/address_envelope.h"

#include <glog/logging.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/transport/core/crc32c.h"

namespace muster {
namespace {

constexpr size_t kMarkBytes = 4;
constexpr size_t kChecksumBytes = 4;

std::string ChecksumOf(absl::string_view bytes) {
  const uint32_t crc =
      Crc32c(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
  std::string encoded;
  for (size_t i = 0; i < kChecksumBytes; ++i) encoded.push_back(static_cast<char>(crc >> (8 * i)));
  return encoded;
}

}  // namespace

std::string SealAddress(absl::string_view mark, absl::string_view address) {
  CHECK_EQ(mark.size(), kMarkBytes);
  return absl::StrCat(mark, ChecksumOf(address), address);
}

absl::StatusOr<absl::string_view> OpenAddress(absl::string_view mark, absl::string_view sealed,
                                              absl::string_view what) {
  constexpr size_t kEnvelopeBytes = kMarkBytes + kChecksumBytes;
  if (sealed.size() <= kEnvelopeBytes || !absl::StartsWith(sealed, mark) ||
      sealed.substr(kMarkBytes, kChecksumBytes) != ChecksumOf(sealed.substr(kEnvelopeBytes))) {
    return absl::InvalidArgumentError(
        absl::StrCat("these ", sealed.size(), " bytes are no ", what));
  }
  return sealed.substr(kEnvelopeBytes);
}

}  // namespace muster
