// Exports the recent step times of a job's workers as muster_job_worker_step_seconds.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "lib/telemetry/metrics.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// Exports three series for each training worker. A worker serves one job at a time, so there are at
// most three times limits::kAttachedMembersMax series. Not thread-safe.
class StepGauges {
 public:
  // The gauges show a mean over at least this time. If steps are long, it covers one step.
  static constexpr absl::Duration kWindow = absl::Seconds(15);

  // `metrics` must outlive this.
  explicit StepGauges(Metrics* metrics) : metrics_(metrics) {}

  // Shows the latest timings of a job's workers; repeated timings are fine. Removes the series of
  // the job's other workers.
  void Show(const std::string& job, const std::vector<v1::MemberTiming>& timings);
  void Forget(const std::string& job) { Show(job, {}); }

 private:
  static constexpr std::array<const char*, 3> kPhases = {"data", "compute", "wait"};

  struct Worker {
    std::array<prometheus::Gauge*, kPhases.size()> gauges;  // by phase
    v1::StepTiming before;                                  // the timing at the last update
    absl::Time set = absl::InfinitePast();
  };

  Worker MakeWorker(const std::string& job, const std::string& name);
  void Remove(const Worker& worker);
  static void Set(Worker& worker, const v1::MemberTiming& told);

  Metrics* const metrics_;
  // By job, then by worker.
  absl::flat_hash_map<std::string, absl::flat_hash_map<std::string, Worker>> jobs_;
};

}  // namespace muster
