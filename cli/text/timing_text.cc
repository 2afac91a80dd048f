#include "cli/text/timing_text.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/text/output.h"
#include "lib/text/byte_size.h"
#include "lib/text/input_verdict.h"
#include "lib/text/step_verdict.h"

namespace muster::cli {
namespace {

std::string Millis(double seconds) { return absl::StrFormat("%.1f", 1e3 * seconds); }

// Returns a row for each worker that reads files, in milliseconds per sample, or "".
std::string InputText(const std::vector<StepCost>& costs) {
  Table table({"INPUT", "THREADS", "OPEN ms", "READ ms", "DECODE ms", "RESAMPLE ms", "AUGMENT ms",
               "CAN READ/S", "REPLACED"});
  bool reads = false;
  for (const StepCost& cost : costs) {
    if (InputCapacity(cost.input) <= 0) continue;
    reads = true;
    std::vector<std::string> row = {cost.worker, absl::StrCat(cost.input.threads())};
    for (const InputStageCost& stage : InputStageCosts(cost.input)) {
      row.push_back(absl::StrFormat("%.3f", 1e3 * stage.seconds));
    }
    row.push_back(FormatCount(InputCapacity(cost.input)));
    row.push_back(absl::StrCat(cost.input.substituted()));
    table.Add(std::move(row));
  }
  return reads ? table.ToString() : "";
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
    timing.set_tensor_parallel_seconds(timing.tensor_parallel_seconds() -
                                       old.tensor_parallel_seconds());
    timing.set_sent_bytes(timing.sent_bytes() - old.sent_bytes());
    timing.set_received_bytes(timing.received_bytes() - old.received_bytes());
    if (timing.has_input()) *timing.mutable_input() = muster::Since(old.input(), timing.input());
  }
  return since;
}

std::string TimingText(const std::string& job, const v1::ReadJobTimingResponse& timing) {
  const std::vector<StepCost> costs = StepCosts(timing);
  if (costs.empty()) {
    return absl::StrCat(job, ": no worker has finished a step yet, or the job does not run\n");
  }
  const bool split = std::ranges::any_of(costs, [](const auto& cost) { return cost.forward > 0; });
  std::vector<std::string> header = {"WORKER", "STEPS", "STEP ms", "DATA ms"};
  for (const char* column : split ? std::vector<const char*>{"FORWARD ms", "BACKWARD ms"}
                                  : std::vector<const char*>{"COMPUTE ms"}) {
    header.emplace_back(column);
  }
  const bool has_ranks =
      std::ranges::any_of(costs, [](const auto& cost) { return cost.tensor_parallel > 0; });
  if (has_ranks) header.emplace_back("RANKS ms");
  for (const char* column : {"WAIT ms", "SENT/STEP", "RECEIVED/STEP", "SAMPLES/S"})
    header.emplace_back(column);
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
    if (has_ranks) row.push_back(Millis(cost.tensor_parallel));
    row.push_back(Millis(cost.wait));
    row.push_back(FormatBytes(static_cast<int64_t>(cost.sent_bytes)));
    row.push_back(FormatBytes(static_cast<int64_t>(cost.received_bytes)));
    row.push_back(FormatCount(cost.samples_per_second));
    table.Add(std::move(row));
  }
  return absl::StrCat(table.ToString(), InputText(costs), absl::StrJoin(StepVerdict(costs), "\n"),
                      "\n");
}

}  // namespace muster::cli
