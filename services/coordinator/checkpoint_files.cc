#include "services/coordinator/checkpoint_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/checkpoint/safetensors.h"
#include "lib/limits/limits.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "lib/transport/crc32c.h"

namespace muster {
namespace {

constexpr char kManifest[] = "manifest.json";

// Every file of the checkpoint, the manifest last: whoever has it has all.
absl::StatusOr<std::vector<v1::CheckpointFile>> FilesOf(const v1::Checkpoint& checkpoint) {
  std::vector<v1::CheckpointFile> files;
  for (const v1::CheckpointFile& file : checkpoint.files()) {
    if (file.name() != kManifest) files.push_back(file);
  }
  std::error_code error;
  v1::CheckpointFile& manifest = files.emplace_back();
  manifest.set_name(kManifest);
  const auto bytes =
      std::filesystem::file_size(std::filesystem::path(checkpoint.directory()) / kManifest, error);
  if (error) {
    return WithReason(absl::NotFoundError(absl::StrCat(checkpoint.name(), ": ", error.message())),
                      "CHECKPOINT_NOT_FOUND");
  }
  manifest.set_size_bytes(bytes);
  return files;
}

}  // namespace

absl::StatusOr<CheckpointFiles> CheckpointFiles::Open(const v1::Checkpoint& checkpoint,
                                                      const v1::ReadCheckpointRequest& request) {
  ASSIGN_OR_RETURN(std::vector<v1::CheckpointFile> files, FilesOf(checkpoint));
  if (request.file().empty()) {
    if (request.offset() != 0)
      return FaultsToStatus({{"offset", "needs a file"}}, "INVALID_REQUEST");
    return CheckpointFiles(checkpoint.directory(), std::move(files), 0);
  }
  const auto file = std::ranges::find(files, request.file(), &v1::CheckpointFile::name);
  if (file == files.end()) {
    return WithReason(
        absl::NotFoundError(absl::StrCat(checkpoint.name(), " has no file '", request.file(), "'")),
        "FILE_NOT_FOUND");
  }
  if (request.offset() < 0 || request.offset() > file->size_bytes()) {
    return FaultsToStatus({{"offset", absl::StrCat("must be 0 to ", file->size_bytes(), " (is ",
                                                   request.offset(), ")")}},
                          "INVALID_REQUEST");
  }
  return CheckpointFiles(checkpoint.directory(), {*file}, request.offset());
}

absl::StatusOr<std::optional<v1::ReadCheckpointResponse>> CheckpointFiles::Next() {
  if (file_ == files_.size()) return std::nullopt;
  const v1::CheckpointFile& file = files_[file_];
  const int64_t bytes = std::min(limits::kReadChunkBytesMax, file.size_bytes() - offset_);
  v1::ReadCheckpointResponse piece;
  piece.set_file(file.name());
  piece.set_offset(offset_);
  piece.set_file_bytes(file.size_bytes());
  std::string& data = *piece.mutable_data();
  data.resize(bytes);
  RETURN_IF_ERROR(
      ReadFileRange(absl::StrCat(directory_, "/", file.name()), offset_, bytes, data.data()));
  piece.set_crc32c(
      Crc32c(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(data.data()), data.size())));
  offset_ += bytes;
  if (offset_ == file.size_bytes()) {
    offset_ = 0;
    ++file_;
  }
  return piece;
}

}  // namespace muster
