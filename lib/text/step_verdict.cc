#include "lib/text/step_verdict.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/text/byte_size.h"
#include "lib/text/input_verdict.h"

namespace muster {
namespace {

// A worker is a straggler if its own time is at least this many times the mean of the others.
constexpr double kStragglerFactor = 1.2;
// A job has too high a tensor-parallel degree if this part of its computing time is communication.
constexpr double kTensorParallelPart = 0.3;

std::string Millis(double seconds) { return absl::StrFormat("%.1f", 1e3 * seconds); }

std::string PercentOf(double part, double whole) {
  return absl::StrFormat("%.0f %%", whole > 0 ? 100 * part / whole : 0);
}

std::string Size(double bytes) { return FormatBytes(static_cast<int64_t>(bytes)); }

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
          .tensor_parallel = timing.tensor_parallel_seconds() / steps,
          .sent_bytes = static_cast<double>(timing.sent_bytes()) / steps,
          .received_bytes = static_cast<double>(timing.received_bytes()) / steps,
          .samples = static_cast<double>(timing.samples()) / steps,
          .samples_per_second = timing.step_seconds() > 0
                                    ? static_cast<double>(timing.samples()) / timing.step_seconds()
                                    : 0,
          .input = timing.input(),
          .steps = timing.steps()};
}

// A worker with more samples than the others needs more time, and is not slow.
std::optional<std::string> Straggler(const std::vector<StepCost>& costs, const StepCost& slowest) {
  if (costs.size() < 2) return std::nullopt;
  double time = 0, samples = 0;
  for (const StepCost& cost : costs) time += cost.own(), samples += cost.samples;
  const auto count = static_cast<double>(costs.size() - 1);
  time = (time - slowest.own()) / count;
  samples = (samples - slowest.samples) / count;
  if (slowest.own() < kStragglerFactor * time) return std::nullopt;
  const double share = samples > 0 ? slowest.samples / samples : 1;
  if (slowest.own() < kStragglerFactor * time * share) {
    return absl::StrFormat(
        "uneven shares: %s trains %.1f samples of a step, the others %.1f: they wait for it. "
        "Another "
        "number of workers gives even shares",
        slowest.worker, slowest.samples, samples);
  }
  return absl::StrCat("straggler: ", slowest.worker, " needs ", Millis(slowest.own()),
                      " ms of its own for a step, the others ", Millis(time), " ms (x",
                      absl::StrFormat("%.1f", slowest.own() / std::max(time, 1e-9)),
                      "): they wait for it");
}

// Judges the worker with the most work of its own: it waits for the network, not for other workers.
std::string Bound(const StepCost& slowest) {
  const std::string arithmetic =
      absl::StrCat(Millis(slowest.data), " data + ", Millis(slowest.compute), " compute + ",
                   Millis(slowest.wait),
                   " wait = ", Millis(slowest.data + slowest.compute + slowest.wait), " ms a step");
  if (slowest.data >= std::max(slowest.compute, slowest.wait)) {
    if (const std::string why = InputVerdict(slowest.input, slowest.wanted()); !why.empty()) {
      return absl::StrFormat("input-bound: %s trains %.0f of %.0f samples/s (%s); %s",
                             slowest.worker, slowest.samples_per_second, slowest.wanted(),
                             arithmetic, why);
    }
    return absl::StrCat("input-bound: ", slowest.worker, " waits ",
                        PercentOf(slowest.data, slowest.step), " of a step for its batch (",
                        arithmetic, "). Faster storage, or fewer samples to prepare at once, help");
  }
  if (slowest.compute >= slowest.wait &&
      slowest.tensor_parallel >= kTensorParallelPart * slowest.compute) {
    return absl::StrCat("tensor-parallel-bound: ", slowest.worker, " spends ",
                        PercentOf(slowest.tensor_parallel, slowest.compute),
                        " of its computing time in collectives of its ranks (", arithmetic,
                        "). A smaller resources.tensor_parallel or a larger batch helps");
  }
  if (slowest.compute >= slowest.wait) {
    return absl::StrCat("compute-bound: ", slowest.worker, " computes ",
                        PercentOf(slowest.compute, slowest.step), " of a step (", arithmetic,
                        "). More workers, a faster device or a lower precision help");
  }
  return absl::StrCat(
      "communication-bound: ", slowest.worker, " waits ", PercentOf(slowest.wait, slowest.step),
      " of a step for parameters (", arithmetic, "); it sends ", Size(slowest.sent_bytes),
      " and receives ", Size(slowest.received_bytes), " a step, ",
      Size((slowest.sent_bytes + slowest.received_bytes) / std::max(slowest.step, 1e-9)),
      "/s. A larger batch, sync.values: bf16, sync.compression, more ps or a faster network help");
}

}  // namespace

std::vector<StepCost> StepCosts(const v1::ReadJobTimingResponse& timing) {
  std::vector<StepCost> costs;
  for (const v1::MemberTiming& member : timing.members()) {
    if (member.timing().steps() > 0) costs.push_back(CostOf(member));
  }
  return costs;
}

std::vector<std::string> StepVerdict(const std::vector<StepCost>& costs) {
  if (costs.empty()) return {};
  const StepCost& slowest = *std::ranges::max_element(costs, {}, &StepCost::own);
  std::vector<std::string> lines;
  if (std::optional<std::string> line = Straggler(costs, slowest)) lines.push_back(*line);
  lines.push_back(Bound(slowest));
  return lines;
}

}  // namespace muster
