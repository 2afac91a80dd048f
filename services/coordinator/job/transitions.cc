#include "services/coordinator/job/transitions.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {
namespace {

constexpr std::array<absl::string_view, kStages> kStageNames = {
    "Queued", "Preparing", "Running",      "Draining",  "Halting",
    "Halted", "Waiting",   "SavingHalted", "Suspended", "Ended"};

constexpr std::array<absl::string_view, kTriggers> kTriggerNames = {
    "cancel",   "resume", "stop",       "schedule", "wait",    "change members",
    "prepared", "lose",   "not finite", "trained",  "stopped", "fail"};

using Row = std::array<Action, kStages>;

// One row for each trigger, one column for each stage.
constexpr std::array<Row, kTriggers> Table() {
  using enum Action;
  constexpr Action kX = kImpossible;
  // clang-format off
  return {{
  // Queued    Preparing Running   Draining  Halting   Halted    Waiting   Saving    Suspended Ended
    {kEnd,     kEnd,     kEnd,     kEnd,     kEnd,     kEnd,     kEnd,     kEnd,     kEnd,     kRefuse},   // cancel
    {kRefuse,  kRefuse,  kRefuse,  kRefuse,  kRefuse,  kRefuse,  kRefuse,  kRefuse,  kQueue,   kRefuse},   // resume
    {kStop,    kStop,    kStop,    kNothing, kStop,    kStop,    kStop,    kStop,    kNothing, kRefuse},   // stop
    {kPrepare, kX,       kX,       kX,       kPrepare, kPrepare, kPrepare, kPrepare, kX,       kX},        // schedule
    {kTell,    kX,       kX,       kX,       kTell,    kTell,    kTell,    kTell,    kX,       kX},        // wait
    {kX,       kX,       kHalt,    kX,       kX,       kX,       kX,       kX,       kX,       kX},        // change members
    {kX,       kRun,     kX,       kX,       kX,       kX,       kX,       kX,       kX,       kX},        // prepared
    {kX,       kHalt,    kHalt,    kHalt,    kGoOn,    kGoOn,    kGoOn,    kGoOn,    kX,       kX},        // lose
    {kX,       kHalt,    kHalt,    kHalt,    kX,       kX,       kX,       kX,       kX,       kX},        // not finite
    {kX,       kX,       kEnd,     kEnd,     kX,       kX,       kX,       kX,       kX,       kX},        // trained
    {kStop,    kStop,    kX,       kStop,    kStop,    kStop,    kStop,    kStop,    kX,       kX},        // stopped
    {kEnd,     kEnd,     kEnd,     kEnd,     kEnd,     kEnd,     kEnd,     kEnd,     kX,       kX},        // fail
  }};
  // clang-format on
}
constexpr std::array<Row, kTriggers> kTable = Table();

// The stages that actions lead to.
constexpr Stage kToEnded[] = {Stage::kEnded};
constexpr Stage kToQueued[] = {Stage::kQueued};
constexpr Stage kToStop[] = {Stage::kPreparing, Stage::kDraining, Stage::kHalting,
                             Stage::kHalted,    Stage::kWaiting,  Stage::kSavingHalted,
                             Stage::kSuspended, Stage::kQueued,   Stage::kEnded};
constexpr Stage kToPreparing[] = {Stage::kPreparing};
constexpr Stage kToRunning[] = {Stage::kRunning, Stage::kDraining, Stage::kHalting, Stage::kHalted,
                                Stage::kEnded};
constexpr Stage kToWaiting[] = {Stage::kQueued,       Stage::kHalting,   Stage::kWaiting,
                                Stage::kSavingHalted, Stage::kSuspended, Stage::kEnded};
constexpr Stage kToHalting[] = {Stage::kHalting, Stage::kHalted, Stage::kSuspended, Stage::kQueued,
                                Stage::kEnded};
constexpr Stage kToRecovering[] = {Stage::kHalting,      Stage::kHalted,    Stage::kWaiting,
                                   Stage::kSavingHalted, Stage::kSuspended, Stage::kQueued,
                                   Stage::kEnded};

constexpr std::array<ActionRow, kActions> kRows = {{
    {"impossible", "",
     "fails this job with the reason INTERNAL, and logs the pair. A job that is suspended or has "
     "ended stays so",
     kToEnded},
    {"nothing", "", "nothing", {}},
    {"refuse", "", "returns an error, or OK if there is nothing to do", {}},
    {"end", "", "releases all members", kToEnded},
    {"queue", "", "queues the job", kToQueued},
    {"stop", "the job holds steps that are in no checkpoint",
     "saves them first: a running job drains, a waiting one saves its halted shards, another one "
     "recovers to do that. Otherwise it stops at once: its stop cause says whether it is "
     "suspended, queued or failed",
     kToStop},
    {"prepare", "", "sends the plan of the next generation to its members", kToPreparing},
    {"run", "all workers see the same data and have like devices",
     "starts the members. Otherwise it leaves out newcomers that differ, or fails", kToRunning},
    {"tell", "", "says what the job waits for. A job that recovers only to stop, stops",
     kToWaiting},
    {"halt", "restart.max_restarts or, at a value that is not finite, on_non_finite allows it",
     "halts the members, so that another generation can follow. Otherwise it fails. If it is to "
     "stop and holds no steps, it stops once all have halted",
     kToHalting},
    {"go on", "", "goes on with the recovery, without the member; stops as after halt",
     kToRecovering},
}};

}  // namespace

Action ActionOn(Stage stage, Trigger trigger) {
  return kTable[static_cast<int>(trigger)][static_cast<int>(stage)];
}

const ActionRow& RowOf(Action action) { return kRows[static_cast<int>(action)]; }

absl::string_view NameOf(Stage stage) { return kStageNames[static_cast<int>(stage)]; }

absl::string_view NameOf(Trigger trigger) { return kTriggerNames[static_cast<int>(trigger)]; }

std::string TransitionsInMarkdown() {
  std::string text = absl::StrCat(
      "# Transitions of a job\n\n"
      "A row is a trigger, a column the stage in which it comes. `-` cannot happen: it ends this "
      "job "
      "alone (`INTERNAL`).\n"
      "Draining is a part of RUNNING; Halting, Halted, Waiting and SavingHalted are parts of "
      "RECOVERING.\n"
      "[transitions.h](../../services/coordinator/job/transitions.h) explains them. Made by "
      "`//services/coordinator/job:transitions_test`.\n\n"
      "| | ",
      absl::StrJoin(kStageNames, " | "), " |\n|---|");
  for (int stage = 0; stage < kStages; ++stage) absl::StrAppend(&text, "---|");
  for (int trigger = 0; trigger < kTriggers; ++trigger) {
    absl::StrAppend(&text, "\n| ", kTriggerNames[trigger], " |");
    for (const Action action : kTable[trigger]) {
      absl::StrAppend(&text, " ", action == Action::kImpossible ? "-" : RowOf(action).name, " |");
    }
  }
  absl::StrAppend(&text, "\n\n| action | what the job does | may lead to |\n|---|---|---|\n");
  for (const ActionRow& row : kRows) {
    absl::StrAppend(
        &text, "| ", row.name == "impossible" ? "-" : row.name, " | ",
        row.guard.empty() ? "" : absl::StrCat("if ", row.guard, ": "), row.does, " | ",
        absl::StrJoin(row.next, ", ",
                      [](std::string* out, Stage stage) { absl::StrAppend(out, NameOf(stage)); }),
        " |\n");
  }
  return text;
}

}  // namespace muster
