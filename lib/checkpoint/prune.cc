#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/checkpoint/checkpoint_layout.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/checkpoint_writer.h"
#include "lib/checkpoint/folder.h"
#include "lib/status/status.h"

namespace muster {
namespace {

absl::Status RemoveLeftovers(const std::string& directory) {
  ASSIGN_OR_RETURN(std::vector<std::string> names, ListFolder(directory));
  for (const std::string& name : names) {
    if (!IsTemporaryFolderName(name) || IsTemporaryFolderOfThisProcess(name)) continue;
    RETURN_IF_ERROR(RemoveFolder(absl::StrCat(directory, "/", name)));
  }
  return absl::OkStatus();
}

// What is left of damaged checkpoints goes when they would have been pruned.
absl::Status RemoveDamagedBefore(const std::string& directory, int64_t first_kept) {
  ASSIGN_OR_RETURN(std::vector<std::string> names, ListFolder(directory));
  for (const std::string& name : names) {
    const std::optional<int64_t> step = ParseDamagedFolderName(name);
    if (!step || *step >= first_kept) continue;
    RETURN_IF_ERROR(RemoveFolder(absl::StrCat(directory, "/", name)));
  }
  return absl::OkStatus();
}

// Away under its name at once: a half-removed folder must not look like a checkpoint, not even
// after a power cut. Where it is now.
absl::StatusOr<std::string> SetAside(const std::string& directory, int64_t step) {
  std::string doomed = absl::StrCat(directory, "/", TemporaryFolderName(step, "pruned"));
  RETURN_IF_ERROR(RenameFolder(CheckpointPath(directory, step), doomed));
  RETURN_IF_ERROR(SyncFolder(directory));
  return doomed;
}

absl::Status Prune(const std::string& directory, int keep_last, absl::Span<const int64_t> needed,
                   std::vector<int64_t>& pruned) {
  RETURN_IF_ERROR(RemoveLeftovers(directory));
  ASSIGN_OR_RETURN(std::vector<int64_t> steps, ListCheckpointSteps(directory));
  if (keep_last < 1) return absl::OkStatus();
  for (size_t i = 0; i + keep_last < steps.size(); ++i) {
    if (std::ranges::count(needed, steps[i]) > 0) continue;
    const absl::StatusOr<std::string> doomed = SetAside(directory, steps[i]);
    if (absl::IsNotFound(doomed.status())) continue;  // somebody else prunes, and has it
    RETURN_IF_ERROR(doomed.status());
    pruned.push_back(steps[i]);
    RETURN_IF_ERROR(RemoveFolder(*doomed));
  }
  if (steps.size() < static_cast<size_t>(keep_last)) return absl::OkStatus();
  return RemoveDamagedBefore(directory, steps[steps.size() - keep_last]);
}

}  // namespace

Pruned PruneCheckpoints(const std::string& directory, int keep_last,
                        absl::Span<const int64_t> needed) {
  Pruned pruned;
  pruned.status = Prune(directory, keep_last, needed, pruned.steps);
  return pruned;
}

absl::Status RemoveCheckpoint(const std::string& directory, int64_t step) {
  ASSIGN_OR_RETURN(const std::string doomed, SetAside(directory, step));
  return RemoveFolder(doomed);
}

}  // namespace muster
