#include "cli/text/timing_text.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/text/output.h"
#include "lib/text/byte_size.h"

namespace muster::cli {
namespace {

// A worker is a straggler if its own time exceeds the mean of the others by this factor.
constexpr double kStragglerFactor = 1.2;

// The times of one worker, in seconds per step.
struct StepCost {
  std::string worker;
  double step = 0, data = 0, compute = 0, wait = 0, forward = 0, backward = 0;
  double sent_bytes = 0, received_bytes = 0, samples_per_second = 0;
  int64_t steps = 0;

  double own() const { return data + compute; }  // the time that does not depend on other members
};

StepCost CostOf(const v1::MemberTiming& member) {
  const v1::StepTiming& timing = member.timing();
  const auto steps = static_cast<double>(timing.steps());
  return {.worker = member.member(),
          .step = timing.step_seconds() / steps,
          .data = timing.data_seconds() / steps,
          .compute = timing.compute_seconds() / steps,
          .wait = timing.wait_seconds() / steps,
          .forward = timing.forward_seconds() / steps,
          .backward = timing.backward_seconds() / steps,
          .sent_bytes = static_cast<double>(timing.sent_bytes()) / steps,
          .received_bytes = static_cast<double>(timing.received_bytes()) / steps,
          .samples_per_second = timing.step_seconds() > 0
                                    ? static_cast<double>(timing.samples()) / timing.step_seconds()
                                    : 0,
          .steps = timing.steps()};
}

std::string Millis(double seconds) { return absl::StrFormat("%.1f", 1e3 * seconds); }
std::string Percent(double part, double whole) {
  return absl::StrFormat("%.0f %%", whole > 0 ? 100 * part / whole : 0);
}

std::string StragglerLine(const std::vector<StepCost>& costs, const StepCost& slowest) {
  if (costs.size() < 2) return "";
  double others = 0;
  for (const StepCost& cost : costs) others += cost.own();
  others = (others - slowest.own()) / static_cast<double>(costs.size() - 1);
  if (slowest.own() < kStragglerFactor * others) return "";
  return absl::StrCat("straggler: ", slowest.worker, " needs ", Millis(slowest.own()),
                      " ms of its own per step, the others ", Millis(others), " ms (x",
                      absl::StrFormat("%.1f", slowest.own() / std::max(others, 1e-9)),
                      "); the others wait for it\n");
}

// Returns the sentence about what bounds the job. It is based on the worker with the most work of
// its own: that worker waits for no other worker's computation, so its waiting is communication.
std::string Verdict(const StepCost& slowest) {
  const std::string arithmetic =
      absl::StrCat(Millis(slowest.data), " data + ", Millis(slowest.compute), " compute + ",
                   Millis(slowest.wait),
                   " wait = ", Millis(slowest.data + slowest.compute + slowest.wait), " ms a step");
  if (slowest.data >= std::max(slowest.compute, slowest.wait)) {
    return absl::StrCat("input-bound: ", slowest.worker, " waits ",
                        Percent(slowest.data, slowest.step), " of a step for its batch (",
                        arithmetic,
                        "). Faster storage, or fewer samples to prepare at once, help\n");
  }
  if (slowest.compute >= slowest.wait) {
    return absl::StrCat("compute-bound: ", slowest.worker, " computes ",
                        Percent(slowest.compute, slowest.step), " of a step (", arithmetic,
                        "). More workers, a faster device or a lower precision help\n");
  }
  return absl::StrCat(
      "communication-bound: ", slowest.worker, " waits ", Percent(slowest.wait, slowest.step),
      " of a step for parameters (", arithmetic, "); it sends ",
      FormatBytes(static_cast<int64_t>(slowest.sent_bytes)), " and receives ",
      FormatBytes(static_cast<int64_t>(slowest.received_bytes)), " a step, ",
      FormatBytes(static_cast<int64_t>((slowest.sent_bytes + slowest.received_bytes) /
                                       std::max(slowest.step, 1e-9))),
      "/s. A larger batch, sync.compression, more ps or a faster network help\n");
}

}  // namespace

v1::ReadJobTimingResponse Since(const v1::ReadJobTimingResponse& before,
                                const v1::ReadJobTimingResponse& after) {
  absl::flat_hash_map<std::string, const v1::StepTiming*> known;
  for (const v1::MemberTiming& member : before.members()) {
    known[member.member()] = &member.timing();
  }
  v1::ReadJobTimingResponse since = after;
  for (v1::MemberTiming& member : *since.mutable_members()) {
    const auto found = known.find(member.member());
    v1::StepTiming& timing = *member.mutable_timing();
    // Fewer steps than before mean another generation; equally many mean no new step.
    if (found == known.end() || timing.steps() <= found->second->steps()) continue;
    const v1::StepTiming& old = *found->second;
    timing.set_steps(timing.steps() - old.steps());
    timing.set_samples(timing.samples() - old.samples());
    timing.set_step_seconds(timing.step_seconds() - old.step_seconds());
    timing.set_data_seconds(timing.data_seconds() - old.data_seconds());
    timing.set_compute_seconds(timing.compute_seconds() - old.compute_seconds());
    timing.set_wait_seconds(timing.wait_seconds() - old.wait_seconds());
    timing.set_forward_seconds(timing.forward_seconds() - old.forward_seconds());
    timing.set_backward_seconds(timing.backward_seconds() - old.backward_seconds());
    timing.set_sent_bytes(timing.sent_bytes() - old.sent_bytes());
    timing.set_received_bytes(timing.received_bytes() - old.received_bytes());
  }
  return since;
}

std::string TimingText(const std::string& job, const v1::ReadJobTimingResponse& timing) {
  std::vector<StepCost> costs;
  for (const v1::MemberTiming& member : timing.members()) {
    if (member.timing().steps() > 0) costs.push_back(CostOf(member));
  }
  if (costs.empty()) {
    return absl::StrCat(job, ": no worker has finished a step yet, or the job does not run\n");
  }
  const bool split = std::ranges::any_of(costs, [](const auto& cost) { return cost.forward > 0; });
  std::vector<std::string> header = {"WORKER", "STEPS", "STEP ms", "DATA"};
  for (const char* column : split ? std::vector<const char*>{"FORWARD", "BACKWARD"}
                                  : std::vector<const char*>{"COMPUTE"}) {
    header.emplace_back(column);
  }
  for (const char* column : {"WAIT", "SENT", "RECEIVED", "SAMPLES/S"}) header.emplace_back(column);
  Table table(std::move(header));
  for (const StepCost& cost : costs) {
    std::vector<std::string> row = {cost.worker, absl::StrCat(cost.steps), Millis(cost.step),
                                    Millis(cost.data)};
    if (split) {
      row.push_back(Millis(cost.forward));
      row.push_back(Millis(cost.compute - cost.forward));
    } else {
      row.push_back(Millis(cost.compute));
    }
    row.push_back(Millis(cost.wait));
    row.push_back(FormatBytes(static_cast<int64_t>(cost.sent_bytes)));
    row.push_back(FormatBytes(static_cast<int64_t>(cost.received_bytes)));
    row.push_back(FormatCount(cost.samples_per_second));
    table.Add(std::move(row));
  }
  const StepCost& slowest = *std::ranges::max_element(costs, {}, &StepCost::own);
  return absl::StrCat(table.ToString(), StragglerLine(costs, slowest), Verdict(slowest));
}

}  // namespace muster::cli
