// What the coordinator exports at /metrics.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/telemetry/metrics.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "services/coordinator/records/job_timeline.h"
#include "services/coordinator/records/step_gauges.h"

namespace muster {

// Thread-safe.
class CoordinatorMetrics {
 public:
  explicit CoordinatorMetrics(Metrics* metrics);

  // Before the first call nothing is exported of it, not even 0: whoever has it serves.
  void ShowTerm(uint64_t term);
  // `reason` may come from a member: what is no token, or one too many, counts as "OTHER".
  void CountTransition(v1::JobState from, v1::JobState to, const std::string& reason)
      ABSL_LOCKS_EXCLUDED(mu_);
  void SetJobs(v1::JobState state, int count);
  // Attached: it has an open stream. Draining: it is given nothing new and ends soon. Silent: its
  // stream is broken, and it has its lease to come back. Whoever does not is lost, and no member.
  enum class MemberState { kAttached, kDraining, kSilent };
  void SetMembers(v1::Role role, MemberState state, int count);
  // How many workers jobs that wait or run would use together: what a fleet may be scaled by.
  struct Workers {
    int64_t min = 0;  // so that none of them waits
    int64_t max = 0;  // that they could use
  };
  void SetWorkersWanted(const Workers& workers);
  // Sets the gauges of a job that has members. `first_step` is 0, or the step of the checkpoint
  // that the job began with. `has_trouble`: v1::Job.trouble is set.
  void SetJob(const std::string& job, const v1::Job& record, int64_t first_step, bool has_trouble)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Where the time of its workers' steps went; see StepGauges::Show().
  void SetSteps(const std::string& job, const std::vector<v1::MemberTiming>& timings)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Of a job that has members. `lost`: what the member is that was lost, or leaves. For `reason`
  // see CountTransition().
  void CountRecovery(const std::string& job, const std::string& reason,
                     std::optional<v1::Role> lost) ABSL_LOCKS_EXCLUDED(mu_);
  void SpanEnded(JobTimeline::Span span, absl::Duration took);
  // A member that was used by jobs is lost: nothing had been heard of it for so long.
  void LossDetected(absl::Duration silence);
  void SetHeartbeatAge(v1::Role role, const std::string& member, double seconds)
      ABSL_LOCKS_EXCLUDED(mu_);
  void ForgetMember(const std::string& member) ABSL_LOCKS_EXCLUDED(mu_);
  // The last checkpoint of a job that has not ended.
  void ShowCheckpoint(const std::string& job, int64_t step, double unix_seconds)
      ABSL_LOCKS_EXCLUDED(mu_);
  // One was written, in so long. `job`: whose, where it has members; nullopt: it has ended
  // meanwhile.
  void CountCheckpoint(const std::optional<std::string>& job, absl::Duration took)
      ABSL_LOCKS_EXCLUDED(mu_);
  // One could not be written. By the reason of `why`; what is none of ours counts as "OTHER".
  void CountCheckpointFailure(const std::optional<std::string>& job, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);
  // It has no members for a while: of it its last checkpoint alone is shown, which it will go on
  // from.
  void RestJob(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);
  void ForgetJob(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);

  prometheus::Histogram& store_commit_seconds;
  prometheus::Counter& checkpoint_bytes;
  prometheus::Counter& checkpoints_damaged;  // each time that one is met
  prometheus::Counter& lease_expiries;
  prometheus::Histogram& tick_lateness;

 private:
  void Forget(const std::string& job, bool checkpoints_too) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  prometheus::Gauge& JobGauge(const char* name, const char* help, const std::string& job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  static constexpr size_t kReasonsMax = 64;  // we and the members have about half as many

  std::string BoundedReason(const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  prometheus::Counter& RecoveriesOf(const std::string& job, const std::string& reason,
                                    std::optional<v1::Role> lost)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Those of the job, or of all that this process has known; from 0 for each reason.
  using Failures = std::array<prometheus::Counter*, 6>;
  Failures MakeCheckpointFailures(const char* name, const char* help, MetricLabels labels);
  // What a job has beside gauges.
  struct CheckpointSeries {
    prometheus::Histogram* seconds = nullptr;
    Failures failures = {};
  };
  CheckpointSeries& CheckpointsOf(const std::string& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  prometheus::Histogram& RecoveryPhase(const char* phase);

  Metrics* const metrics_;
  prometheus::Histogram& queue_wait_;
  prometheus::Histogram& detect_;
  prometheus::Histogram& halt_;
  prometheus::Histogram& plan_;
  prometheus::Histogram& prepare_;
  prometheus::Histogram& first_step_;
  prometheus::Histogram& recovery_;
  prometheus::Histogram& checkpoint_seconds_;
  const Failures checkpoint_failures_;
  absl::Mutex mu_;
  absl::flat_hash_set<std::string> reasons_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, prometheus::Gauge*> heartbeat_ages_
      ABSL_GUARDED_BY(mu_);  // by member
  absl::flat_hash_map<std::string, absl::flat_hash_map<std::string, prometheus::Gauge*>> by_job_
      ABSL_GUARDED_BY(mu_);  // then by metric name
  StepGauges steps_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, absl::flat_hash_set<prometheus::Counter*>> recoveries_
      ABSL_GUARDED_BY(mu_);                                                              // by job
  absl::flat_hash_map<std::string, CheckpointSeries> checkpoints_ ABSL_GUARDED_BY(mu_);  // likewise
};

}  // namespace muster
