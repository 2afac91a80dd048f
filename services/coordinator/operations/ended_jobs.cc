#include "services/coordinator/operations/ended_jobs.h"

#include <glog/logging.h>

#include <algorithm>
#include <functional>
#include <tuple>

#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/job/resource_name.h"
#include "lib/job/spec_duration.h"
#include "lib/log/log_scope.h"
#include "lib/status/status.h"
#include "services/coordinator/common/job_phase.h"
#include "services/coordinator/common/proto_time.h"
#include "services/coordinator/job/job_state.h"

namespace muster {

absl::Duration EndedJobs::TtlOf(const v1::JobSpec& spec) const {
  if (spec.has_ttl_after_finished()) return SpecDuration(spec.ttl_after_finished());
  const absl::Duration ttl = options_.retention.ttl;
  return ttl > absl::ZeroDuration() ? ttl : absl::InfiniteDuration();
}

// Returns the jobs that are too many or too old, except those whose records name a checkpoint that
// must be kept. For the others Sweep() asks the disk, which may have checkpoints that could not be
// read. A job file with delete_after_ttl allows the deletion of its checkpoints only by its own
// ttl.
std::vector<EndedJobs::Surplus> EndedJobs::FindSurplus() const {
  struct Ended {
    absl::Time time;
    uint64_t number;
    std::string id;
    absl::Duration ttl;
    bool is_damaged;
    bool has_checkpoint;
    bool gives_checkpoints_up;
  };
  const Retention& retention = options_.retention;
  JobRegistry::Transaction transaction(options_.registry);
  std::vector<Ended> ended;
  for (const auto& [number, entry] : transaction.jobs()) {
    const v1::Job& record = *entry->published;
    // A checkpoint that is being committed may be the job's only one.
    if (!IsTerminal(record.state()) || entry->rounds.committing()) continue;
    const v1::JobSpec& spec = record.spec();
    ended.push_back({.time = FromProto(record.end_time()),
                     .number = number,
                     .id = JobIdOf(record.name()),
                     .ttl = TtlOf(spec),
                     .is_damaged = IsDamaged(record),
                     .has_checkpoint = !record.checkpoint().empty(),
                     .gives_checkpoints_up =
                         spec.has_ttl_after_finished() && spec.checkpoint().delete_after_ttl()});
  }
  std::ranges::sort(ended, std::greater<>(),
                    [](const Ended& job) { return std::tuple(job.time, job.number); });
  const absl::Time now = options_.registry->Now();
  std::vector<Surplus> surplus;
  for (size_t i = 0; i < ended.size(); ++i) {
    const Ended& job = ended[i];
    const bool too_many = retention.keep > 0 && static_cast<int64_t>(i) >= retention.keep;
    const bool too_old = now - job.time >= job.ttl;
    if (job.is_damaged || (!too_many && !too_old)) continue;
    const bool with_checkpoints =
        retention.with_checkpoints || (too_old && job.gives_checkpoints_up);
    if (with_checkpoints || !job.has_checkpoint) surplus.push_back({job.id, with_checkpoints});
  }
  return surplus;
}

// Also true if the folder cannot be read, because it may contain a checkpoint.
bool EndedJobs::HasCheckpointsOnDisk(const std::string& id) const {
  const auto steps = ListCheckpointSteps(options_.registry->folder().checkpoints(id));
  return !steps.ok() || !steps->empty();
}

void EndedJobs::Sweep() {
  options_.users->RemoveOldUploads();
  for (const auto& [id, with_checkpoints] : FindSurplus()) {
    if (repeater_.stopping()) return;
    const LogScope scope({.job = id});
    if (!with_checkpoints && HasCheckpointsOnDisk(id)) continue;
    const absl::Status deleted = options_.users->DeleteJob(id);
    const bool is_of_its_folder = ReasonOf(deleted) == "STATE_DIR_FAILED";
    if (deleted.ok() || absl::IsNotFound(deleted)) continue;
    if (absl::IsFailedPrecondition(deleted) && !is_of_its_folder) continue;
    LOG(ERROR) << id << " ended long ago and cannot be deleted: " << deleted;
    if (!is_of_its_folder) return;  // a failure of the store would affect the next job, too
  }
}

}  // namespace muster
