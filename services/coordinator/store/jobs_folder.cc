#include "services/coordinator/store/jobs_folder.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/checkpoint/folder.h"
#include "lib/file/replaced_file.h"
#include "lib/status/status.h"
#include "services/coordinator/store/store_records.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

std::string IdIn(const std::string& folder) {
  std::string id;
  std::ifstream(folder + "/folder.id") >> id;
  return id;
}

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

absl::Status WriteId(const std::string& folder, const std::string& id) {
  absl::Status written = ReplaceFile(folder + "/folder.id", id);
  if (written.ok()) written = SyncFolder(folder);
  return written.ok() ? written : WithReason(written, "STATE_DIR_FAILED");
}

absl::Status NotTheOne(const std::string& jobs, const std::string& why) {
  return WithReason(
      absl::FailedPreconditionError(absl::StrCat(
          jobs, " is not the folder that has the checkpoints of this coordinator's jobs: ", why,
          ". Is the right volume mounted? If the old folder is lost for good, or this one replaces "
          "it, start with --adopt_state_dir; the coordinator then forgets checkpoints that are not "
          "here")),
      "JOBS_NOT_MOUNTED");
}

}  // namespace

absl::Status CheckJobsFolder(const StateFolder& folder,
                             const std::vector<std::string>& with_checkpoints) {
  const std::string state_dir = ParentOf(folder.jobs());
  const std::string found = IdIn(folder.jobs());
  const std::string own = IdIn(state_dir);
  if (!own.empty() && found == own) return absl::OkStatus();
  if (!own.empty() && !found.empty()) {
    return NotTheOne(folder.jobs(), absl::StrCat("it belongs to the state folder ", found, ", and ",
                                                 state_dir, " is ", own));
  }
  const bool has_some = std::ranges::any_of(
      with_checkpoints, [&](const std::string& id) { return Exists(folder.checkpoints(id)); });
  if (!with_checkpoints.empty() && !has_some) {
    return NotTheOne(folder.jobs(),
                     absl::StrCat("it has none of the checkpoints of ", with_checkpoints.size(),
                                  " jobs, such as ", with_checkpoints.front()));
  }
  const absl::Status marked =
      own.empty() && !found.empty() ? WriteId(state_dir, found) : AdoptJobsFolder(folder);
  // A disk that is full or read-only does not prevent the start. The next start writes the mark.
  LOG_IF(WARNING, !marked.ok()) << folder.jobs() << ": " << marked.message();
  return absl::OkStatus();
}

absl::Status AdoptJobsFolder(const StateFolder& folder) {
  const std::string state_dir = ParentOf(folder.jobs());
  std::string own = IdIn(state_dir);
  if (own.empty()) {  // StateFolder::Id() instead handles concurrent callers
    own = NewClusterId();
    RETURN_IF_ERROR(WriteId(state_dir, own));
  }
  return IdIn(folder.jobs()) == own ? absl::OkStatus() : WriteId(folder.jobs(), own);
}

}  // namespace muster
