#include "services/coordinator/store/state_folder.h"

#include <glog/logging.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/checkpoint/disk_file.h"
#include "lib/checkpoint/folder.h"
#include "lib/status/status.h"
#include "services/coordinator/store/store_records.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr char kAsideSuffix[] = ".deleted";

absl::Status FromCode(const std::error_code& error, const std::string& path) {
  if (!error) return absl::OkStatus();
  return WithReason(absl::ErrnoToStatus(error.value(), path), "STATE_DIR_FAILED");
}

// Makes a folder and syncs its parents. Otherwise a power cut could remove the name of the folder,
// and the synced files in it would be lost.
absl::Status MakeDurable(const std::string& path) {
  const absl::Status made = MakeFolders(path);
  return made.ok() ? made : WithReason(made, "STATE_DIR_FAILED");
}

absl::Status WriteDurably(const std::string& path, const std::string& text) {
  ASSIGN_OR_RETURN(DiskFile file, DiskFile::CreateToWrite(path));
  RETURN_IF_ERROR(file.WriteAt(
      0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size())));
  return file.Sync();
}

}  // namespace

absl::StatusOr<StateFolder> StateFolder::Open(const std::string& path) {
  std::error_code error;
  const std::string absolute = fs::absolute(path, error).lexically_normal().string();
  RETURN_IF_ERROR(FromCode(error, path));
  RETURN_IF_ERROR(MakeDurable(absolute + "/jobs"));
  return StateFolder(absolute);
}

// Creates the file completely or not at all: link() does not replace a file, so the first process
// wins.
absl::StatusOr<std::string> StateFolder::Id() const {
  const std::string path = path_ + "/folder.id";
  const std::string own = NewClusterId();
  const std::string unfinished = absl::StrCat(path, ".", own);
  std::error_code error;
  if (!fs::exists(path, error)) {
    absl::Status made = WriteDurably(unfinished, own);
    if (made.ok() && link(unfinished.c_str(), path.c_str()) != 0 && errno != EEXIST) {
      made = absl::ErrnoToStatus(errno, path);
    }
    fs::remove(unfinished, error);
    if (made.ok()) made = SyncFolder(path_);
    if (!made.ok()) return WithReason(made, "STATE_DIR_FAILED");
  }
  std::string id;
  std::ifstream(path) >> id;
  if (!id.empty()) return id;
  return WithReason(absl::DataLossError(absl::StrCat(
                        path,
                        " is empty: remove it; and if "
                        "the store belongs to this folder, start with --adopt_state_dir")),
                    "STATE_DIR_FAILED");
}

absl::StatusOr<std::vector<StateFolder::JobFolder>> StateFolder::JobFolders() const {
  std::vector<JobFolder> folders;
  std::error_code error, ignored;
  for (fs::directory_iterator entry(jobs(), error), end; !error && entry != end;
       entry.increment(error)) {
    JobFolder folder{.id = entry->path().filename().string()};
    if (entry->path().extension() == kAsideSuffix) folder.id = entry->path().stem().string();
    const size_t dash = folder.id.rfind('-');
    if (dash != std::string::npos && absl::SimpleAtoi(folder.id.substr(dash + 1), &folder.number) &&
        folder.number <= kJobNumberMax && entry->is_directory(ignored)) {
      folders.push_back(std::move(folder));
    }
  }
  RETURN_IF_ERROR(FromCode(error, jobs()));
  return folders;
}

absl::Status StateFolder::MakeJob(const std::string& id) const { return MakeDurable(job(id)); }

absl::Status StateFolder::SetJobAside(const std::string& id) const {
  std::error_code error;
  if (!fs::exists(job(id), error)) return FromCode(error, job(id));
  fs::rename(job(id), job(id) + kAsideSuffix, error);
  RETURN_IF_ERROR(FromCode(error, job(id)));
  // A power cut without this sync could bring the folder back for good after the store has
  // forgotten the job.
  const absl::Status synced = SyncFolder(path_ + "/jobs");
  if (synced.ok()) return synced;
  fs::rename(job(id) + kAsideSuffix, job(id), error);
  return WithReason(synced, "STATE_DIR_FAILED");
}

void StateFolder::RemoveJobSetAside(const std::string& id) const {
  std::error_code error;
  fs::remove_all(job(id) + kAsideSuffix, error);
  if (error) LOG(ERROR) << job(id) << kAsideSuffix << " cannot be removed: " << error.message();
}

void StateFolder::BringJobBack(const std::string& id) const {
  std::error_code error;
  if (!fs::exists(job(id) + kAsideSuffix, error)) return;
  fs::rename(job(id) + kAsideSuffix, job(id), error);
  if (error) {
    LOG(ERROR) << job(id) << kAsideSuffix << " cannot be brought back: " << error.message();
    return;
  }
  const absl::Status synced = SyncFolder(path_ + "/jobs");
  LOG_IF(ERROR, !synced.ok()) << job(id) << ": " << synced;
}

void StateFolder::RemoveAllSetAside() const {
  std::error_code error;
  for (const auto& folder : fs::directory_iterator(path_ + "/jobs", error)) {
    if (folder.path().extension() == kAsideSuffix) fs::remove_all(folder.path(), error);
  }
}

}  // namespace muster
