#include "services/coordinator/common/job_phase.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace muster {
namespace {

constexpr absl::string_view kReasons[] = {
    "",                     // kOther
    "WORKERS_JOIN",         // kWorkersJoin
    "WORKERS_YIELD",        // kWorkersYield
    "WAITS_FOR_MEMBERS",    // kWaitsForMembers
    "WAITS_FOR_MEMORY",     // kWaitsForMemory
    "MEMORY_TOO_SMALL",     // kMemoryTooSmall
    "WAITS_FOR_CHECKPOINT"  // kWaitsForCheckpoint
};
constexpr absl::string_view kWaitsFor = "; waits for ";

}  // namespace

absl::string_view ReasonOf(JobPhase phase) {
  CHECK(phase != JobPhase::kOther);
  return kReasons[static_cast<int>(phase)];
}

bool Waits(JobPhase phase) {
  return phase == JobPhase::kWaitsForMembers || phase == JobPhase::kWaitsForMemory ||
         phase == JobPhase::kWaitsForCheckpoint;
}

std::string WaitMessage(absl::string_view cause, absl::string_view awaited) {
  return absl::StrCat(cause, kWaitsFor, awaited);
}

JobPhase PhaseOf(const v1::Job& stored) {
  if (stored.state() != v1::QUEUED && stored.state() != v1::RECOVERING) return JobPhase::kOther;
  for (size_t phase = 1; phase < std::size(kReasons); ++phase) {
    if (stored.reason() == kReasons[phase]) return static_cast<JobPhase>(phase);
  }
  return JobPhase::kOther;
}

std::string CauseOf(const v1::Job& stored) {
  const absl::string_view message = stored.message();
  return std::string(Waits(PhaseOf(stored)) ? message.substr(0, message.rfind(kWaitsFor))
                                            : message);
}

bool IsDamaged(const v1::Job& stored) { return stored.reason() == kJobDamaged; }

StopKind KindOf(const v1::StopCause& cause) {
  if (cause.reason() == kActiveDeadline) return StopKind::kActiveDeadline;
  return cause.reason() == kYields ? StopKind::kYields : StopKind::kOther;
}

}  // namespace muster
