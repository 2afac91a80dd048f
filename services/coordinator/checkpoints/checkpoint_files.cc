#include "services/coordinator/checkpoints/checkpoint_files.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"

namespace muster {
namespace {

constexpr char kManifest[] = "manifest.json";

// The manifest comes last, so a client that has it has all files.
std::vector<std::string> NamesOf(const v1::Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const v1::CheckpointFile& file : checkpoint.files()) {
    if (file.name() != kManifest) names.push_back(file.name());
  }
  names.push_back(kManifest);
  return names;
}

}  // namespace

absl::StatusOr<CheckpointFiles> CheckpointFiles::Open(const v1::Checkpoint& checkpoint,
                                                      const v1::ReadCheckpointRequest& request) {
  std::vector<std::string> names = NamesOf(checkpoint);
  if (!request.file().empty()) {
    if (!std::ranges::count(names, request.file())) {
      return WithReason(absl::NotFoundError(absl::StrCat(CheckpointIdOf(checkpoint.name()),
                                                         " has no file '", request.file(), "'")),
                        "FILE_NOT_FOUND");
    }
    names = {request.file()};
  } else if (request.offset() != 0) {
    return FaultsToStatus({{"offset", "needs a file"}}, "INVALID_REQUEST");
  }
  std::vector<File> files;
  for (const std::string& name : names) {
    absl::StatusOr<DiskFile> content =
        DiskFile::OpenToRead(absl::StrCat(checkpoint.directory(), "/", name));
    if (absl::IsNotFound(content.status())) {
      return WithReason(absl::NotFoundError(absl::StrCat(CheckpointIdOf(checkpoint.name()), ": ",
                                                         content.status().message())),
                        "CHECKPOINT_NOT_FOUND");
    }
    RETURN_IF_ERROR(content.status());
    ASSIGN_OR_RETURN(const int64_t bytes, content->Size());
    files.push_back({.name = name, .bytes = bytes, .content = *std::move(content)});
  }
  if (request.offset() < 0 || request.offset() > files[0].bytes) {
    return FaultsToStatus(
        {{"offset", absl::StrCat("must be 0 to ", files[0].bytes, " (is ", request.offset(), ")")}},
        "INVALID_REQUEST");
  }
  return CheckpointFiles(std::move(files), request.offset());
}

absl::StatusOr<std::optional<v1::ReadCheckpointResponse>> CheckpointFiles::Next() {
  if (file_ == files_.size()) return std::nullopt;
  const File& file = files_[file_];
  const int64_t bytes = std::min(limits::kReadChunkBytesMax, file.bytes - offset_);
  v1::ReadCheckpointResponse piece;
  piece.set_file(file.name);
  piece.set_offset(offset_);
  piece.set_file_bytes(file.bytes);
  std::string& data = *piece.mutable_data();
  data.resize(bytes);
  RETURN_IF_ERROR(file.content.ReadAt(
      offset_, absl::MakeSpan(reinterpret_cast<std::byte*>(data.data()), data.size())));
  piece.set_crc32c(
      Crc32c(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(data.data()), data.size())));
  offset_ += bytes;
  if (offset_ == file.bytes) {
    offset_ = 0;
    ++file_;
  }
  return piece;
}

}  // namespace muster
