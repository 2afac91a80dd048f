#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/checkpoint/checkpoint_layout.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/checkpoint_writer.h"
#include "lib/checkpoint/doomed_folder.h"
#include "lib/checkpoint/folder.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// Removes all entries for which `is_doomed` is true. An entry that cannot be removed does not stop
// the others. Returns the first error.
template <typename Predicate>
absl::Status RemoveThose(const std::string& directory, Predicate is_doomed) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(directory));
  absl::Status first;
  for (const std::string& name : names) {
    if (!is_doomed(name)) continue;
    const absl::Status removed = RemoveAside(absl::StrCat(directory, "/", name));
    // NOT_FOUND: another process prunes too, and has it
    if (!absl::IsNotFound(removed)) first.Update(removed);
  }
  return first;
}

// Returns the step of a checkpoint that a dead process has moved out of its way.
std::optional<int64_t> ReplacedStep(const std::string& name) {
  const std::optional<TemporaryFolder> folder = ParseTemporaryFolderName(name);
  if (!folder || folder->id != kReplacedId || IsTemporaryFolderOfThisProcess(name)) return {};
  return folder->step;
}

bool IsThere(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

absl::Status RemoveLeftovers(const std::string& directory) {
  return RemoveThose(directory, [](const std::string& name) {
    return IsTemporaryFolderName(name) && !ReplacedStep(name) &&
           (!IsTemporaryFolderOfThisProcess(name) || DoomedFolder::IsLeft(name));
  });
}

// The rest of a damaged checkpoint is removed when the checkpoint would have been pruned.
absl::Status RemoveDamagedBefore(const std::string& directory, int64_t first_kept) {
  return RemoveThose(directory, [first_kept](const std::string& name) {
    const std::optional<int64_t> step = ParseDamagedFolderName(name);
    return step && *step < first_kept;
  });
}

}  // namespace

absl::Status FinishReplacements(const std::string& directory) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(directory));
  absl::Status first;
  for (const std::string& name : names) {
    const std::optional<int64_t> step = ReplacedStep(name);
    if (!step) continue;
    const std::string path = absl::StrCat(directory, "/", name),
                      checkpoint = CheckpointPath(directory, *step);
    absl::Status finished;
    if (IsThere(checkpoint)) {
      finished = RemoveAside(path);
    } else {
      finished = RenameFolder(path, checkpoint);
      if (finished.ok()) finished = SyncFolder(directory);
    }
    // NOT_FOUND: another process has finished it
    if (!absl::IsNotFound(finished)) first.Update(finished);
  }
  return first;
}

Pruned PruneCheckpoints(const std::string& directory, int keep_last,
                        absl::Span<const int64_t> needed) {
  Pruned pruned{.steps = {}, .status = FinishReplacements(directory)};
  pruned.status.Update(RemoveLeftovers(directory));
  if (keep_last < 1) return pruned;
  const absl::StatusOr<std::vector<int64_t>> steps = ListCheckpointSteps(directory);
  pruned.status.Update(steps.status());
  if (!steps.ok() || steps->size() < static_cast<size_t>(keep_last)) return pruned;
  const size_t first_kept = steps->size() - keep_last;
  for (const int64_t step : absl::MakeConstSpan(*steps).first(first_kept)) {
    if (std::ranges::count(needed, step) > 0) continue;
    absl::StatusOr<DoomedFolder> doomed = DoomedFolder::SetAside(CheckpointPath(directory, step));
    if (absl::IsNotFound(doomed.status())) continue;  // another process prunes too, and has it
    if (doomed.ok()) pruned.steps.push_back(step);
    pruned.status.Update(doomed.ok() ? doomed->Remove() : doomed.status());
  }
  pruned.status.Update(RemoveDamagedBefore(directory, (*steps)[first_kept]));
  return pruned;
}

absl::Status RemoveCheckpoint(const std::string& directory, int64_t step) {
  return RemoveAside(CheckpointPath(directory, step));
}

}  // namespace muster
