// Exports the recent step times of jobs' workers as muster_job_worker_step_seconds.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/records/gauge_snapshot.h"

namespace muster {

// Exports three series for each training worker. A worker serves one job at a time, so there are at
// most three times limits::kAttachedMembersMax series. Not thread-safe.
class StepGauges {
 public:
  // The gauges show a mean over at least this time. If steps are long, it covers one step.
  static constexpr absl::Duration kWindow = absl::Seconds(15);

  // `gauges` must outlive this.
  explicit StepGauges(GaugeSnapshot* gauges) : gauges_(gauges) {}

  // Adds the latest timings of a job's workers to the next snapshot; repeated timings are fine.
  void Add(const std::string& job, const std::vector<v1::MemberTiming>& timings);
  // The snapshot is complete. Forgets the workers that it lacks.
  void EndSnapshot() { workers_ = std::exchange(next_, {}); }

 private:
  static constexpr std::array<const char*, 3> kPhases = {"data", "compute", "wait"};

  struct Worker {
    std::array<double, kPhases.size()> seconds = {};  // of a step, by phase
    v1::StepTiming before;                            // the timing at the last update
    absl::Time set = absl::InfinitePast();            // the time of the last update
  };
  using Workers = absl::flat_hash_map<std::pair<std::string, std::string>, Worker>;

  static void Update(Worker& worker, const v1::MemberTiming& told);

  GaugeSnapshot* const gauges_;
  Workers workers_;  // of the last snapshot, by job and worker
  Workers next_;     // of the next snapshot
};

}  // namespace muster
