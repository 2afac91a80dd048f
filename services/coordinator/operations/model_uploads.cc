#include "services/coordinator/operations/model_uploads.h"

#include <glog/logging.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <random>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/checkpoint/folder.h"
#include "lib/job/path_rules.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr char kUnfinished[] = ".part";

absl::Status Invalid(absl::string_view what) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat("content: ", what)), "INVALID_REQUEST");
}

// Returns nothing for a folder that cannot be read; the next call tries again.
std::vector<std::string> NamesIn(const std::string& folder) {
  const auto names = ListFolder(folder);
  LOG_IF(ERROR, !names.ok()) << "uploads: " << names.status();
  return names.ok() ? *names : std::vector<std::string>();
}

void Remove(const std::string& file) {
  std::error_code error;
  std::filesystem::remove(file, error);
  if (error) LOG(ERROR) << file << " cannot be removed: " << error.message();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelUploads::Upload>> ModelUploads::Begin() const {
  RETURN_IF_ERROR(MakeFolders(folder_));
  std::random_device random;
  const uint64_t name = uint64_t{random()} << 32 | random();
  ASSIGN_OR_RETURN(DiskFile file, DiskFile::CreateToWrite(
                                      absl::StrFormat("%s/%016x%s", folder_, name, kUnfinished)));
  return std::unique_ptr<Upload>(new Upload(folder_, std::move(file)));
}

ModelUploads::Upload::~Upload() {
  if (!path_.empty()) Remove(path_);
}

absl::Status ModelUploads::Upload::Write(absl::string_view content) {
  const auto bytes = static_cast<int64_t>(content.size());
  if (bytes > limits::kSliceBytesMax) {
    return Invalid(absl::StrCat("must be at most ", limits::kSliceBytesMax, " bytes (is ", bytes,
                                "): send the file in parts"));
  }
  if (bytes > limits::kModelUploadBytesMax - bytes_) {
    return Invalid(
        absl::StrCat("a model file may have at most ", limits::kModelUploadBytesMax,
                     " bytes: put it where the coordinator can read it, and name its path"));
  }
  RETURN_IF_ERROR(
      file_.WriteAt(bytes_, {reinterpret_cast<const std::byte*>(content.data()), content.size()}));
  bytes_ += bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::string> ModelUploads::Upload::Commit(const std::function<bool()>& caller_gone) {
  if (bytes_ == 0) return Invalid("the file is empty");
  RETURN_IF_ERROR(file_.Sync());
  ASSIGN_OR_RETURN(const std::string sum, file_.Sha256(caller_gone));
  const std::string name = absl::StrCat(sum, ".safetensors");
  const std::string final_path = absl::StrCat(folder_, "/", name);
  // Replaces a file of the same content, so that it counts as new.
  if (std::rename(path_.c_str(), final_path.c_str()) != 0) {
    return StorageError(final_path, "rename", errno);
  }
  path_.clear();
  RETURN_IF_ERROR(SyncFolder(folder_));
  return absl::StrCat(kUploadsPrefix, name);
}

void ModelUploads::RemoveOld(absl::Time now,
                             const std::function<bool(const std::string&)>& is_named) const {
  for (const std::string& name : NamesIn(folder_)) {
    const std::string file = absl::StrCat(folder_, "/", name);
    struct stat status;
    if (stat(file.c_str(), &status) != 0) continue;
    if (now - absl::TimeFromTimespec(status.st_mtim) < kKept) continue;
    if (!is_named(absl::StrCat(kUploadsPrefix, name))) Remove(file);
  }
}

void ModelUploads::RemoveUnfinished() const {
  for (const std::string& name : NamesIn(folder_)) {
    if (absl::EndsWith(name, kUnfinished)) Remove(absl::StrCat(folder_, "/", name));
  }
}

}  // namespace muster
