// The transition table of a job: what a job does about each trigger in each stage. The table itself
// is in transitions.cc, and rendered in docs/reference/job_transitions.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster {

// A stage is a state of the API (v1::JobState) or a part of one.
enum class Stage : uint8_t {
  kQueued,
  kPreparing,     // members prepare a generation
  kRunning,       // members train
  kDraining,      // RUNNING: members go on to a last checkpoint, because the job is to stop
  kHalting,       // RECOVERING: some members have not stopped
  kHalted,        // RECOVERING: all members have stopped, and the next generation is planned
  kWaiting,       // RECOVERING: halted, and waits for members, memory or a checkpoint
  kSavingHalted,  // RECOVERING: waiting, and its ps write the halted shards to a checkpoint
  kSuspended,
  kEnded,  // SUCCEEDED, FAILED or CANCELLED
};
inline constexpr int kStages = 10;

enum class Trigger : uint8_t {
  kCancel,         // a user cancels the job
  kResume,         // a user resumes it
  kStop,           // a user suspends it, or it is past a deadline, or it yields
  kSchedule,       // the scheduler has the plan of its next generation
  kWait,           // the scheduler finds that members, memory or a checkpoint are missing
  kChangeMembers,  // workers or replicas join, workers yield, or a member leaves
  kPrepared,       // all members have prepared
  kLose,           // a member is lost or fails, and the others can continue
  kNotFinite,      // a loss or gradient is not finite
  kTrained,        // all steps are trained, saved and recorded
  kStopped,        // nothing is left to do before the job stops
  kFail,           // the job has failed, and no recovery can help
};
inline constexpr int kTriggers = 12;

enum class Action : uint8_t {
  kImpossible,  // a broken invariant
  kNothing,
  kRefuse,
  kEnd,
  kQueue,
  kStop,
  kPrepare,
  kRun,
  kTell,
  kHalt,
  kGoOn,
};
inline constexpr int kActions = 11;

// Each pair of a stage and a trigger has one action. Pure.
Action ActionOn(Stage stage, Trigger trigger);

// The effect of an action, for readers and tests.
struct ActionRow {
  absl::string_view name;
  absl::string_view guard;  // the condition of the first part of `does`; "": none
  absl::string_view does;
  absl::Span<const Stage> next;  // where it may lead to. Empty: the stage does not change
};
const ActionRow& RowOf(Action action);

absl::string_view NameOf(Stage stage);
absl::string_view NameOf(Trigger trigger);

// Returns the page docs/reference/job_transitions.md.
std::string TransitionsInMarkdown();

}  // namespace muster
