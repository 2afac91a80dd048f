#include "services/coordinator/scheduling/job_conditions.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "lib/job/resource_name.h"
#include "services/coordinator/common/proto_time.h"

namespace muster {
namespace {

std::string Counted(int count, absl::string_view one, absl::string_view more) {
  return absl::StrCat(count, " ", count == 1 ? one : more);
}

std::string CountOfWorkers(int count) { return Counted(count, "worker", "workers"); }

// Sets the reason and a message: the need, the supply, and the remedy if waiting does not help.
void Explain(const Wait& wait, v1::JobWaiting& waiting) {
  switch (wait.cause) {
    case WaitCause::kWorkers:
      waiting.set_reason("WAITS_FOR_WORKERS");
      waiting.set_message(absl::StrCat(
          "needs ", CountOfWorkers(wait.workers_needed), ", ", wait.workers_free, " free of the ",
          wait.workers_attached, " attached",
          wait.workers_unsuitable > 0
              ? absl::StrCat(" whose devices fit resources.tensor_parallel (those of ",
                             wait.workers_unsuitable, " do not)")
              : "",
          wait.workers_attached < wait.workers_needed ? ": start more, or submit it with fewer "
                                                        "(resources.workers.min)"
                                                      : ""));
      return;
    case WaitCause::kPs:
      waiting.set_reason("WAITS_FOR_PS");
      waiting.set_message(absl::StrCat("needs ", wait.ps_needed, " ps, ", wait.ps_attached,
                                       " attached: start more, or submit it with fewer "
                                       "(resources.ps)"));
      return;
    case WaitCause::kPsMemory:
      waiting.set_reason("WAITS_FOR_MEMORY");
      waiting.set_message(absl::StrCat("needs ", wait.ps_needed, " ps with room for its shards; ",
                                       wait.ps_attached, " attached, too few of them have it"));
      return;
    case WaitCause::kGathers:
      waiting.set_reason("STARTING");
      waiting.set_message("can start; waits a moment for more workers");
      return;
    case WaitCause::kItsTurn:
      waiting.set_reason("WAITS_FOR_ITS_TURN");
      waiting.set_message(absl::StrCat("free members are reserved for job number ",
                                       wait.reserved_for, ", which goes first"));
      return;
    case WaitCause::kIsBehind:
      waiting.set_reason("WAITS_FOR_ITS_TURN");
      waiting.set_message(absl::StrCat(wait.position - 1, " jobs are ahead of it in the queue"));
      return;
  }
}

// Returns "ps-0, ps-1, worker-0, worker-1 and 5 more".
std::string NamesOf(const std::vector<std::string>& members) {
  constexpr size_t kNamedMax = 4;
  const size_t named = std::min(members.size(), kNamedMax);
  std::string names = absl::StrJoin(members.begin(), members.begin() + named, ", ");
  if (members.size() > named) absl::StrAppend(&names, " and ", members.size() - named, " more");
  return names;
}

void AddWaiting(JobPhase phase, const std::optional<Wait>& wait, v1::Job& job,
                const std::vector<std::string>& stopping) {
  v1::JobWaiting& waiting = *job.mutable_waiting();
  if (job.state() == v1::RECOVERING) {
    const bool told = Waits(phase);
    waiting.set_reason(std::string(told ? ReasonOf(phase) : "STARTING"));
    waiting.set_message(told ? job.message()
                        : stopping.empty()
                            ? "all members have stopped; the next plan is being made"
                            : absl::StrCat("waits until ", NamesOf(stopping),
                                           " stop; then all members get the next plan"));
    return;
  }
  if (!wait) {
    const bool told = phase == JobPhase::kWaitsForCheckpoint;
    waiting.set_reason(std::string(told ? ReasonOf(phase) : "STARTING"));
    waiting.set_message(told ? job.message() : "it was just queued, or its plan is being made");
    return;
  }
  Explain(*wait, waiting);
  // The scheduler has planned the job, so the record's message has the exact number of bytes.
  const bool memory = phase == JobPhase::kWaitsForMemory || phase == JobPhase::kMemoryTooSmall;
  if (wait->cause == WaitCause::kPsMemory && memory) waiting.set_message(job.message());
  waiting.set_workers_needed(wait->workers_needed);
  waiting.set_workers_free(wait->workers_free);
  waiting.set_workers_attached(wait->workers_attached);
  waiting.set_ps_needed(wait->ps_needed);
  waiting.set_ps_attached(wait->ps_attached);
  waiting.set_position(wait->position);
  waiting.set_queue_length(wait->queue_length);
}

bool HasMembers(v1::JobState state) { return state == v1::PREPARING || state == v1::RUNNING; }

bool IsOf(v1::JobConditionType type, const v1::Job& job) {
  switch (type) {
    case v1::JOB_CONDITION_TYPE_SCHEDULED:
      return HasMembers(job.state());
    case v1::JOB_CONDITION_TYPE_RUNNING:
      return job.state() == v1::RUNNING;
    case v1::JOB_CONDITION_TYPE_CHECKPOINTED:
      return !job.checkpoint().empty();
    case v1::JOB_CONDITION_TYPE_SUSPENDED:
      return job.state() == v1::SUSPENDED;
    case v1::JOB_CONDITION_TYPE_SUCCEEDED:
      return job.state() == v1::SUCCEEDED;
    case v1::JOB_CONDITION_TYPE_FAILED:
      return job.state() == v1::FAILED || job.state() == v1::CANCELLED;
    default:
      return false;
  }
}

}  // namespace

void UpdateConditions(std::optional<absl::Time> now, v1::Job& job) {
  for (int number = v1::JOB_CONDITION_TYPE_SCHEDULED; number <= v1::JOB_CONDITION_TYPE_FAILED;
       ++number) {
    const int index = number - v1::JOB_CONDITION_TYPE_SCHEDULED;
    const bool known = index < job.conditions_size();
    v1::JobCondition& condition = known ? *job.mutable_conditions(index) : *job.add_conditions();
    condition.set_type(static_cast<v1::JobConditionType>(number));
    const bool status = IsOf(condition.type(), job);
    if (known && condition.status() == status) continue;
    condition.set_status(status);
    condition.clear_last_transition_time();
    if (now) *condition.mutable_last_transition_time() = ToProto(*now);
  }
}

void AddWhatFollows(JobPhase phase, const std::optional<Wait>& wait, v1::Job& job,
                    const std::vector<std::string>& stopping) {
  job.clear_waiting();
  if (job.state() == v1::QUEUED || job.state() == v1::RECOVERING) {
    AddWaiting(phase, wait, job, stopping);
  }
  UpdateConditions(/*now=*/std::nullopt, job);
  for (v1::JobCondition& condition : *job.mutable_conditions()) {
    condition.clear_reason();
    condition.clear_message();
    // A condition that holds gets the job's reason, except CHECKPOINTED, which names the
    // checkpoint. SCHEDULED also has a reason while it does not hold: why the job waits.
    if (condition.type() == v1::JOB_CONDITION_TYPE_CHECKPOINTED) {
      condition.set_message(CheckpointIdOf(job.checkpoint()));
    } else if (condition.type() == v1::JOB_CONDITION_TYPE_SCHEDULED && job.has_waiting()) {
      condition.set_reason(job.waiting().reason());
      condition.set_message(job.waiting().message());
    } else if (condition.status()) {
      condition.set_reason(job.reason());
      condition.set_message(job.message());
    }
  }
}

}  // namespace muster
