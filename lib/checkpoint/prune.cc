#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
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

// All that `is_doomed` is true of. One that cannot be removed keeps no other: the first error.
template <typename Predicate>
absl::Status RemoveThose(const std::string& directory, Predicate is_doomed) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(directory));
  absl::Status first;
  for (const std::string& name : names) {
    if (!is_doomed(name)) continue;
    const absl::Status removed = RemoveAside(absl::StrCat(directory, "/", name));
    if (!absl::IsNotFound(removed)) first.Update(removed);  // else somebody else prunes, and has it
  }
  return first;
}

absl::Status RemoveLeftovers(const std::string& directory) {
  return RemoveThose(directory, [](const std::string& name) {
    return IsTemporaryFolderName(name) &&
           (!IsTemporaryFolderOfThisProcess(name) || DoomedFolder::IsLeft(name));
  });
}

// What is left of damaged checkpoints goes when they would have been pruned.
absl::Status RemoveDamagedBefore(const std::string& directory, int64_t first_kept) {
  return RemoveThose(directory, [first_kept](const std::string& name) {
    const std::optional<int64_t> step = ParseDamagedFolderName(name);
    return step && *step < first_kept;
  });
}

}  // namespace

Pruned PruneCheckpoints(const std::string& directory, int keep_last,
                        absl::Span<const int64_t> needed) {
  Pruned pruned{.steps = {}, .status = RemoveLeftovers(directory)};
  if (keep_last < 1) return pruned;
  const absl::StatusOr<std::vector<int64_t>> steps = ListCheckpointSteps(directory);
  pruned.status.Update(steps.status());
  if (!steps.ok() || steps->size() < static_cast<size_t>(keep_last)) return pruned;
  const size_t first_kept = steps->size() - keep_last;
  for (const int64_t step : absl::MakeConstSpan(*steps).first(first_kept)) {
    if (std::ranges::count(needed, step) > 0) continue;
    absl::StatusOr<DoomedFolder> doomed = DoomedFolder::SetAside(CheckpointPath(directory, step));
    if (absl::IsNotFound(doomed.status())) continue;  // somebody else prunes, and has it
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
