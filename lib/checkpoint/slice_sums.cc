#include "lib/checkpoint/slice_sums.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/security/sha256.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"

namespace muster {
namespace {

constexpr int64_t kReadBytes = 4 << 20;  // per read

void AddTo(Sha256& sum, absl::Span<const std::byte> bytes) {
  sum.Add({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace

void SliceSums::Add(int64_t offset, int64_t bytes, uint32_t crc32c) {
  if (bytes > 0) slices_[{offset, bytes}] = crc32c;
}

absl::StatusOr<std::string> SliceSums::VerifyAndHash(const DiskFile& file) const {
  ASSIGN_OR_RETURN(const int64_t end, file.Size());
  std::vector<std::byte> buffer;
  Sha256 sum;
  int64_t hashed = 0;
  // Hashes the bytes before `offset` that belong to no slice.
  auto hash_up_to = [&](int64_t offset) -> absl::Status {
    while (hashed < offset) {
      buffer.resize(std::min(kReadBytes, offset - hashed));
      RETURN_IF_ERROR(file.ReadAt(hashed, absl::MakeSpan(buffer)));
      AddTo(sum, buffer);
      hashed += std::ssize(buffer);
    }
    return absl::OkStatus();
  };
  for (const auto& [slice, crc32c] : slices_) {
    const auto [offset, bytes] = slice;
    RETURN_IF_ERROR(hash_up_to(offset));
    buffer.resize(bytes);
    RETURN_IF_ERROR(file.ReadAt(offset, absl::MakeSpan(buffer)));
    if (const uint32_t found = Crc32c(buffer); found != crc32c) {
      return WithReason(
          absl::DataLossError(absl::StrCat(file.path(), ": bytes [", offset, ", + ", bytes,
                                           ") are not what was written ", "there (checksum ",
                                           absl::Hex(found, absl::kZeroPad8), " instead of ",
                                           absl::Hex(crc32c, absl::kZeroPad8), ")")),
          "DIRECT_MISMATCH");
    }
    // Slices may overlap; bytes that were hashed already are skipped.
    const int64_t known = std::clamp<int64_t>(hashed - offset, 0, bytes);
    AddTo(sum, absl::MakeConstSpan(buffer).subspan(known));
    hashed = std::max(hashed, offset + bytes);
  }
  RETURN_IF_ERROR(hash_up_to(end));
  return absl::BytesToHexString(sum.Finish());
}

}  // namespace muster
