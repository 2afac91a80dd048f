#include "services/coordinator/checkpoints/restore_choice.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "google/protobuf/util/message_differencer.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/sound_checkpoints.h"
#include "lib/job/resource_name.h"
#include "lib/status/status.h"

namespace muster {
namespace {

absl::Status Damaged(absl::string_view message) {
  return WithReason(absl::DataLossError(message), "CHECKPOINT_DAMAGED");
}

absl::Status Verify(const std::string& path, const RestoreWatch& watch) {
  const absl::Status verified = VerifyCheckpoint(path, watch.stop);
  if (absl::IsDataLoss(verified) && watch.damaged != nullptr) watch.damaged();
  return verified;
}

// Returns the data's fingerprint in a checkpoint, or "" if that was trained with another `data:`.
absl::StatusOr<std::string> FingerprintIn(const std::string& path, const v1::DataSpec& data) {
  ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(path));
  const Manifest& manifest = reader->manifest();
  const bool is_same =
      google::protobuf::util::MessageDifferencer::Equals(manifest.spec.data(), data);
  return is_same ? manifest.data_fingerprint : "";
}

absl::StatusOr<RestoreChoice> FromOrigin(const v1::Job& record, const JobOrigin& origin,
                                         const StateFolder& folder, const RestoreWatch& watch) {
  RestoreChoice choice{.restore = origin.restore, .first_step = origin.first_step};
  if (origin.restore.empty()) return choice;
  const std::string path = PathOfRestore(origin.restore, folder);
  const absl::Status verified = Verify(path, watch);
  if (absl::IsDataLoss(verified)) {
    return Damaged(absl::StrCat("the checkpoint that ", JobIdOf(record.name()),
                                " starts from is damaged: ", verified.message(),
                                SoundOnesBeside(path, watch.stop),
                                ". Submit the job again, with a checkpoint.resume_from that "
                                "is sound"));
  }
  RETURN_IF_ERROR(verified);
  ASSIGN_OR_RETURN(choice.data_fingerprint, FingerprintIn(path, record.spec().data()));
  return choice;
}

// Returns the steps of the job's checkpoints up to `last`, newest first. Includes `last` even if
// its folder is gone.
absl::StatusOr<std::vector<int64_t>> OwnSteps(const std::string& directory, int64_t last) {
  ASSIGN_OR_RETURN(std::vector<int64_t> steps, ListCheckpointSteps(directory));
  std::erase_if(steps, [last](int64_t step) { return step >= last; });
  steps.push_back(last);
  std::ranges::reverse(steps);
  return steps;
}

// Returns true if the error does not come from the checkpoint: the caller is gone (CANCELLED), or
// this process is out of file descriptors or memory (RESOURCE_EXHAUSTED). Other checkpoints would
// fail in the same way.
bool IsOfThisProcess(const absl::Status& verified) {
  return absl::IsCancelled(verified) || absl::IsResourceExhausted(verified);
}

void TrySetAside(const std::string& directory, RestoreChoice::PassedOver& damaged) {
  const absl::Status aside = SetDamagedAside(directory, damaged.step);
  damaged.set_aside = aside.ok();
  if (aside.ok()) return;
  LOG(ERROR) << "a damaged checkpoint cannot be set aside: " << aside;
  absl::StrAppend(&damaged.what, "; it cannot be set aside: ", aside.message());
}

}  // namespace

absl::StatusOr<RestoreChoice> ChooseRestore(const v1::Job& record, const JobOrigin& origin,
                                            const StateFolder& folder, const RestoreWatch& watch) {
  const auto last = ParseCheckpointRef(record.checkpoint());
  if (!last || !last->step) return FromOrigin(record, origin, folder, watch);
  const std::string id = JobIdOf(record.name()), directory = folder.checkpoints(id);
  ASSIGN_OR_RETURN(const std::vector<int64_t> steps, OwnSteps(directory, *last->step));
  RestoreChoice choice;
  std::vector<int64_t> damaged;
  absl::Status unreadable;  // error of the newest unreadable checkpoint
  for (const int64_t step : steps) {
    const absl::Status verified = Verify(CheckpointPath(directory, step), watch);
    if (IsOfThisProcess(verified)) return verified;
    if (verified.ok()) {
      choice.restore = CheckpointName(id, step);
      choice.first_step = step;
      choice.is_own = true;
      ASSIGN_OR_RETURN(choice.data_fingerprint,
                       FingerprintIn(CheckpointPath(directory, step), record.spec().data()));
      for (RestoreChoice::PassedOver& passed_over : choice.passed_over) {
        if (std::ranges::count(damaged, passed_over.step) > 0) TrySetAside(directory, passed_over);
      }
      return choice;
    }
    if (absl::IsDataLoss(verified)) {
      damaged.push_back(step);
    } else {
      unreadable.Update(verified);
    }
    choice.passed_over.push_back({.step = step, .what = std::string(verified.message())});
  }
  const std::string none =
      absl::StrCat("none of the ", choice.passed_over.size(), " checkpoints of ", id, " is sound");
  if (!unreadable.ok()) {
    return Annotate(unreadable, absl::StrCat(none, ", and this one cannot be read now"));
  }
  return Damaged(absl::StrCat(none, ", the newest: ", choice.passed_over[0].what,
                              ". Submit the job again to train it from its beginning"));
}

std::string PathOfRestore(absl::string_view restore, const StateFolder& folder) {
  const auto reference = ParseCheckpointRef(restore);
  if (!reference) return std::string(restore);
  CHECK(reference->step.has_value()) << restore;
  return CheckpointPath(folder.checkpoints(reference->job), *reference->step);
}

}  // namespace muster
