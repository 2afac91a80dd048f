// The phase of a job inside its state. Users see it as the reason of the job.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

enum class JobPhase : uint8_t {
  kOther,         // the state says enough
  kWorkersJoin,   // RECOVERING: halted to add workers that have warmed up
  kWorkersYield,  // RECOVERING: halted to release workers
  // QUEUED or RECOVERING:
  kWaitsForMembers,
  kWaitsForMemory,
  kMemoryTooSmall,
  kWaitsForCheckpoint,
};

// Returns the reason that users see. Requires: not kOther, which has many reasons.
absl::string_view ReasonOf(JobPhase phase);

// Whether the job waits for something that may come by itself.
bool Waits(JobPhase phase);

// A recovering job that waits has a message of two parts: the cause of the recovery, and what the
// job waits for.
std::string WaitMessage(absl::string_view cause, absl::string_view awaited);

// The functions below read stored words. No other code decides by a reason or a message, so both
// may be reworded for new jobs.

// Returns the phase of a job that a coordinator stored.
JobPhase PhaseOf(const v1::Job& stored);
// Returns the cause of the recovery from a stored message, see WaitMessage().
std::string CauseOf(const v1::Job& stored);
// Whether the record stands for a job that could not be read from the store.
bool IsDamaged(const v1::Job& stored);

// Why the coordinator stops a job.
enum class StopKind : uint8_t {
  kOther,
  kActiveDeadline,  // the job is past its active_deadline
  kYields,          // it is queued again, so that another job can continue
};
StopKind KindOf(const v1::StopCause& cause);

// The reasons of these causes, and of a damaged job.
inline constexpr char kActiveDeadline[] = "ACTIVE_DEADLINE";
inline constexpr char kYields[] = "GIVES_WAY";
inline constexpr char kJobDamaged[] = "JOB_DAMAGED";

}  // namespace muster
