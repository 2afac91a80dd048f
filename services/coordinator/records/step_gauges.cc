#include "services/coordinator/records/step_gauges.h"

#include <cstddef>

#include "absl/container/flat_hash_set.h"
#include "services/coordinator/common/proto_time.h"

namespace muster {
namespace {

constexpr char kName[] = "muster_job_worker_step_seconds";

// Seconds in the order of kPhases.
std::array<double, 3> SecondsOf(const v1::StepTiming& timing) {
  return {timing.data_seconds(), timing.compute_seconds(), timing.wait_seconds()};
}

}  // namespace

void StepGauges::Show(const std::string& job, const std::vector<v1::MemberTiming>& timings) {
  if (timings.empty() && !jobs_.contains(job)) return;
  auto& workers = jobs_[job];
  absl::flat_hash_set<std::string> told;
  for (const v1::MemberTiming& timing : timings) {
    if (timing.timing().steps() <= 0) continue;
    told.insert(timing.member());
    auto worker = workers.find(timing.member());
    if (worker == workers.end()) {
      worker = workers.emplace(timing.member(), MakeWorker(job, timing.member())).first;
    }
    Set(worker->second, timing);
  }
  absl::erase_if(workers, [&](const auto& entry) {
    if (told.contains(entry.first)) return false;
    Remove(entry.second);
    return true;
  });
  if (workers.empty()) jobs_.erase(job);
}

StepGauges::Worker StepGauges::MakeWorker(const std::string& job, const std::string& name) {
  Worker worker;
  for (size_t phase = 0; phase < kPhases.size(); ++phase) {
    worker.gauges[phase] = &metrics_->Gauge(
        kName,
        "Time of the worker's last steps, mean of a quarter of a minute: waiting for the batch, "
        "computing, waiting for parameters.",
        {{"job", job}, {"worker", name}, {"phase", kPhases[phase]}});
  }
  return worker;
}

void StepGauges::Remove(const Worker& worker) {
  for (prometheus::Gauge* gauge : worker.gauges) metrics_->Remove(kName, *gauge);
}

// Shows the mean since the last update, if kWindow has passed. The totals of a new generation start
// at 0 again.
void StepGauges::Set(Worker& worker, const v1::MemberTiming& told) {
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
    worker.gauges[phase]->Set((seconds[phase] - before[phase]) / static_cast<double>(steps));
  }
  worker.before = now;
  worker.set = time;
}

}  // namespace muster
