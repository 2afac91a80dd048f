#include "services/coordinator/records/step_gauges.h"

#include <cstddef>
#include <cstdint>

#include "services/coordinator/common/proto_time.h"

namespace muster {
namespace {

// Seconds in the order of kPhases.
std::array<double, 3> SecondsOf(const v1::StepTiming& timing) {
  return {timing.data_seconds(), timing.compute_seconds(), timing.wait_seconds()};
}

}  // namespace

void StepGauges::Add(const std::string& job, const std::vector<v1::MemberTiming>& timings) {
  for (const v1::MemberTiming& timing : timings) {
    if (timing.timing().steps() <= 0) continue;
    const std::pair key(job, timing.member());
    const auto known = workers_.find(key);
    Worker& worker = next_[key] = known == workers_.end() ? Worker() : known->second;
    Update(worker, timing);
    for (size_t phase = 0; phase < kPhases.size(); ++phase) {
      gauges_->Add(
          "muster_job_worker_step_seconds",
          "Time of the worker's last steps, mean of a quarter of a minute: waiting for the batch, "
          "computing, waiting for parameters.",
          {{"job", job}, {"worker", timing.member()}, {"phase", kPhases[phase]}},
          worker.seconds[phase]);
    }
  }
}

// Takes the mean since the last update, if kWindow has passed. The totals of a new generation start
// at 0 again.
void StepGauges::Update(Worker& worker, const v1::MemberTiming& told) {
  const v1::StepTiming& now = told.timing();
  const absl::Time time = FromProto(told.report_time());
  if (now.steps() < worker.before.steps() || now.step_seconds() < worker.before.step_seconds()) {
    worker.before = v1::StepTiming();
    worker.set = absl::InfinitePast();
  }
  const int64_t steps = now.steps() - worker.before.steps();
  if (steps == 0 || time - worker.set < kWindow) return;
  const std::array<double, 3> seconds = SecondsOf(now), before = SecondsOf(worker.before);
  for (size_t phase = 0; phase < kPhases.size(); ++phase) {
    worker.seconds[phase] = (seconds[phase] - before[phase]) / static_cast<double>(steps);
  }
  worker.before = now;
  worker.set = time;
}

}  // namespace muster
