#include "lib/checkpoint/doomed_folder.h"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/checkpoint/checkpoint_layout.h"
#include "lib/checkpoint/folder.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr char kLeft[] = "left-";

// Every name begins with "step-00001000".
int64_t StepOf(absl::string_view name) {
  const std::optional<int64_t> step = ParseStepFolderName(name.substr(0, name.find('.')));
  CHECK(step.has_value()) << name;
  return *step;
}

}  // namespace

absl::StatusOr<DoomedFolder> DoomedFolder::SetAside(const std::string& path) {
  static std::atomic<int64_t> count = 0;
  const int64_t step = StepOf(std::filesystem::path(path).filename().native());
  const int64_t number = ++count;
  const auto path_for = [&](absl::string_view id) {
    return absl::StrCat(ParentOf(path), "/", TemporaryFolderName(step, absl::StrCat(id, number)));
  };
  DoomedFolder doomed(path_for("pruned-"), path_for(kLeft));
  RETURN_IF_ERROR(RenameFolder(path, doomed.path_));
  return doomed;
}

absl::Status DoomedFolder::Remove() {
  absl::Status removed = SyncFolder(ParentOf(path_));
  if (removed.ok()) removed = RemoveFolder(path_);
  if (removed.ok()) return removed;
  if (absl::Status renamed = RenameFolder(path_, left_); !renamed.ok()) LOG(ERROR) << renamed;
  return removed;
}

bool DoomedFolder::IsLeft(absl::string_view name) {
  const std::optional<TemporaryFolder> folder = ParseTemporaryFolderName(name);
  return folder && absl::StartsWith(folder->id, kLeft);
}

absl::Status RemoveAside(const std::string& path) {
  ASSIGN_OR_RETURN(DoomedFolder doomed, DoomedFolder::SetAside(path));
  return doomed.Remove();
}

}  // namespace muster
