#include "services/coordinator/job/transitions.h"

#include <array>

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

}  // namespace

Action ActionOn(Stage stage, Trigger trigger) {
  return kTable[static_cast<int>(trigger)][static_cast<int>(stage)];
}

absl::string_view NameOf(Stage stage) { return kStageNames[static_cast<int>(stage)]; }

absl::string_view NameOf(Trigger trigger) { return kTriggerNames[static_cast<int>(trigger)]; }

}  // namespace muster
