#include "lib/checkpoint/shared_files.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "lib/checkpoint/checkpoint_layout.h"
#include "lib/status/status.h"

namespace muster {
namespace {

absl::Status CheckFolder(const SharedFiles::Options& options, absl::string_view folder) {
  absl::string_view name = folder;
  const std::string job = absl::StrCat(options.job, "/checkpoints/");
  if (!options.job.empty() && absl::ConsumePrefix(&name, job) && !absl::StrContains(name, '/') &&
      IsTemporaryFolderName(name) &&
      absl::StartsWith(name, absl::StrCat(StepFolderName(options.step), "."))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", folder, "' is not a temporary folder of step ", options.step, " of ", options.job));
}

}  // namespace

absl::StatusOr<SharedFiles> SharedFiles::Open(const Options& options,
                                              const v1::WriteShardDirectResponse& layout) {
  RETURN_IF_ERROR(CheckFolder(options, layout.folder()));
  std::vector<DiskFile> files;
  for (const v1::CheckpointFile& file : layout.files()) {
    if (!IsCheckpointFileName(file.name())) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", file.name(), "' is not a file of a checkpoint"));
    }
    auto opened = DiskFile::OpenBeneath(
        options.root, absl::StrCat(layout.folder(), "/", file.name()), file.size_bytes());
    if (!opened.ok()) {
      return absl::Status(
          opened.status().code(),
          absl::StrCat(opened.status().message(),
                       "; --checkpoint_root must be the path here of the coordinator's ",
                       layout.jobs_folder(), ", on the same volume, with processes of the ",
                       "same user"));
    }
    files.push_back(*std::move(opened));
  }
  return SharedFiles(std::move(files));
}

absl::Status SharedFiles::WriteAt(int file, int64_t offset, absl::Span<const std::byte> data) {
  if (file < 0 || file >= std::ssize(files_) || offset < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("file ", file, ", offset ", offset, ": there are ", files_.size(), " files"));
  }
  RETURN_IF_ERROR(files_[file].WriteAt(offset, data));
  touched_[file] = 1;
  unsynced_bytes_ += std::ssize(data);
  return absl::OkStatus();
}

absl::Status SharedFiles::Sync() {
  for (size_t i = 0; i < files_.size(); ++i) {
    if (touched_[i] == 0) continue;
    RETURN_IF_ERROR(files_[i].Sync());
    touched_[i] = 0;
  }
  unsynced_bytes_ = 0;
  return absl::OkStatus();
}

}  // namespace muster
