#include "services/coordinator/job/job_refusals.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/job/resource_name.h"
#include "lib/status/status.h"
#include "services/coordinator/job/job_state.h"

namespace muster {
namespace {

absl::Status Precondition(const std::string& message, absl::string_view reason) {
  return WithReason(absl::FailedPreconditionError(message), reason);
}

}  // namespace

absl::Status CheckNotEnded(const v1::Job& record) {
  if (!IsTerminal(record.state())) return absl::OkStatus();
  return Precondition(absl::StrCat(JobIdOf(record.name()), " has ended already (",
                                   v1::JobState_Name(record.state()), ")"),
                      "JOB_FINISHED");
}

absl::Status CheckResumes(const v1::Job& record, const v1::ResourceSpec* resources) {
  RETURN_IF_ERROR(CheckNotEnded(record));
  if (record.suspend_requested()) {
    return Precondition(
        absl::StrCat(JobIdOf(record.name()), " is being suspended; resume it once it is SUSPENDED"),
        "JOB_SUSPENDING");
  }
  if (record.state() == v1::SUSPENDED || resources == nullptr) return absl::OkStatus();
  const v1::ResourceSpec& own = record.spec().resources();
  if (resources->SerializeAsString() == own.SerializeAsString()) return absl::OkStatus();
  return Precondition(
      absl::StrCat(JobIdOf(record.name()), " is ", v1::JobState_Name(record.state()),
                   ": it takes other resources only while it is SUSPENDED"),
      "JOB_NOT_SUSPENDED");
}

absl::Status CheckMakesCheckpoint(const v1::Job& record) {
  if (record.state() == v1::RUNNING && !record.suspend_requested()) return absl::OkStatus();
  return Precondition(
      absl::StrCat(JobIdOf(record.name()), " is not running (", v1::JobState_Name(record.state()),
                   record.suspend_requested() ? ", being suspended)" : ")"),
      "JOB_NOT_RUNNING");
}

absl::Status CheckTakesShard(const v1::Job& record, const v1::JobPlan* plan, bool is_halted,
                             const v1::WriteShardHeader& header) {
  if (record.state() != v1::RUNNING && !is_halted) {
    return Precondition(absl::StrCat(JobIdOf(record.name()), " is not running (",
                                     v1::JobState_Name(record.state()), ")"),
                        "JOB_NOT_RUNNING");
  }
  if (header.generation() != record.generation()) {
    return Precondition(absl::StrCat(JobIdOf(record.name()), ": generation ", header.generation(),
                                     " is not the current one (", record.generation(), ")"),
                        "STALE_GENERATION");
  }
  if (header.shard() < 0 || header.shard() >= plan->shards_size()) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat(JobIdOf(record.name()), ": no shard ",
                                                              header.shard(), " (",
                                                              plan->shards_size(), " shards)")),
                      "SHARD_NOT_FOUND");
  }
  return absl::OkStatus();
}

}  // namespace muster
