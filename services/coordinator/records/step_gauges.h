// What a step took each worker of a job lately, as muster_job_worker_step_seconds.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "lib/telemetry/metrics.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// Three series for each worker that trains: it serves one job at a time, so they are no more than
// three times limits::kAttachedMembersMax. Not thread-safe.
class StepGauges {
 public:
  // The mean is one of the steps of so long at least, where steps are short.
  static constexpr absl::Duration kWindow = absl::Seconds(15);

  // `metrics` outlives it.
  explicit StepGauges(Metrics* metrics) : metrics_(metrics) {}

  // What the workers of a job have told last, or again; series of others of the job disappear.
  void Show(const std::string& job, const std::vector<v1::MemberTiming>& timings);
  void Forget(const std::string& job) { Show(job, {}); }

 private:
  static constexpr std::array<const char*, 3> kPhases = {"data", "compute", "wait"};

  struct Worker {
    std::array<prometheus::Gauge*, kPhases.size()> gauges;  // by phase
    v1::StepTiming before;                                  // what was told when they were set last
    absl::Time set = absl::InfinitePast();
  };

  Worker MakeWorker(const std::string& job, const std::string& name);
  void Remove(const Worker& worker);
  static void Set(Worker& worker, const v1::MemberTiming& told);

  Metrics* const metrics_;
  absl::flat_hash_map<std::string, absl::flat_hash_map<std::string, Worker>> jobs_;  // then by name
};

}  // namespace muster
