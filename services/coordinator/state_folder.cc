#include "services/coordinator/state_folder.h"

#include <glog/logging.h>

#include <filesystem>
#include <system_error>

#include "lib/checkpoint/folder.h"
#include "lib/status/status.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr char kAsideSuffix[] = ".deleted";

absl::Status FromCode(const std::error_code& error, const std::string& path) {
  if (!error) return absl::OkStatus();
  return WithReason(absl::ErrnoToStatus(error.value(), path), "STATE_DIR_FAILED");
}

// What is synced in a folder is worth nothing while a power cut can take the folder's own name.
absl::Status MakeDurable(const std::string& path) {
  const absl::Status made = MakeFolders(path);
  return made.ok() ? made : WithReason(made, "STATE_DIR_FAILED");
}

}  // namespace

absl::StatusOr<StateFolder> StateFolder::Open(const std::string& path) {
  std::error_code error;
  const std::string absolute = fs::absolute(path, error).lexically_normal().string();
  RETURN_IF_ERROR(FromCode(error, path));
  RETURN_IF_ERROR(MakeDurable(absolute + "/jobs"));
  return StateFolder(absolute);
}

absl::Status StateFolder::MakeJob(const std::string& id) const { return MakeDurable(job(id)); }

absl::Status StateFolder::SetJobAside(const std::string& id) const {
  std::error_code error;
  if (!fs::exists(job(id), error)) return FromCode(error, job(id));
  fs::rename(job(id), job(id) + kAsideSuffix, error);
  RETURN_IF_ERROR(FromCode(error, job(id)));
  // Or else, when the store has forgotten the job, a power cut could bring its folder back for
  // good.
  const absl::Status synced = SyncFolder(path_ + "/jobs");
  if (synced.ok()) return synced;
  fs::rename(job(id) + kAsideSuffix, job(id), error);
  return WithReason(synced, "STATE_DIR_FAILED");
}

void StateFolder::RemoveJobSetAside(const std::string& id) const {
  std::error_code error;
  fs::remove_all(job(id) + kAsideSuffix, error);
  if (error) LOG(ERROR) << job(id) << kAsideSuffix << " is left over: " << error.message();
}

void StateFolder::RemoveAllSetAside() const {
  std::error_code error;
  for (const auto& folder : fs::directory_iterator(path_ + "/jobs", error)) {
    if (folder.path().extension() == kAsideSuffix) fs::remove_all(folder.path(), error);
  }
}

}  // namespace muster
