#include "lib/checkpoint/sound_checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/checkpoint/checkpoint_layout.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/folder.h"
#include "lib/status/status.h"

namespace muster {

absl::Status VerifyCheckpoint(const std::string& path, const std::function<bool()>& stop) {
  const auto reader = CheckpointReader::Open(path);
  if (absl::IsNotFound(reader.status())) {
    return WithReason(absl::DataLossError(reader.status().message()), "CHECKPOINT_DAMAGED");
  }
  RETURN_IF_ERROR(reader.status());
  return (*reader)->Verify(stop);
}

std::vector<int64_t> SoundSteps(const std::string& directory, int64_t except,
                                const std::function<bool()>& stop) {
  std::vector<int64_t> steps = ListCheckpointSteps(directory).value_or(std::vector<int64_t>());
  std::erase_if(steps, [&](int64_t step) {
    return step == except || !VerifyCheckpoint(CheckpointPath(directory, step), stop).ok();
  });
  std::ranges::reverse(steps);
  return steps;
}

std::string SoundOnesBeside(const std::string& path, const std::function<bool()>& stop) {
  const auto step = ParseStepFolderName(std::filesystem::path(path).filename().native());
  const std::vector<int64_t> steps = SoundSteps(ParentOf(path), step.value_or(-1), stop);
  return steps.empty() ? "; no other beside it is sound"
                       : absl::StrCat("; sound beside it: ", steps.size() == 1 ? "step " : "steps ",
                                      absl::StrJoin(steps, ", "));
}

absl::Status SetDamagedAside(const std::string& directory, int64_t step) {
  const std::string path = CheckpointPath(directory, step);
  const std::string aside = absl::StrCat(directory, "/", DamagedFolderName(step));
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::OkStatus();
  RETURN_IF_ERROR(RemoveFolder(aside));
  RETURN_IF_ERROR(RenameFolder(path, aside));
  return SyncFolder(directory);
}

}  // namespace muster
