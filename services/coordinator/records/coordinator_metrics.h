// The metrics that the coordinator exports at /metrics.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
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
#include "services/coordinator/records/gauge_snapshot.h"
#include "services/coordinator/records/job_timeline.h"
#include "services/coordinator/records/step_gauges.h"

namespace muster {

// Thread-safe. Only one thread calls the functions named Set...() and Publish().
class CoordinatorMetrics {
 public:
  explicit CoordinatorMetrics(Metrics* metrics);

  // Exports the term. Not exported before the first call, not even as 0: only a leader has it.
  void ShowTerm(uint64_t term);
  // `reason` may come from a member. A reason that is not a token, or is new when kReasonsMax are
  // known, counts as "OTHER".
  void CountTransition(v1::JobState from, v1::JobState to, const std::string& reason)
      ABSL_LOCKS_EXCLUDED(mu_);

  // ---- Gauges. Publish() replaces all of them by those set since its last call. So a job or a
  // member that was not set has none any more.
  void SetJobs(v1::JobState state, int count);
  // Shows the state of each job that has not ended, with its reason: its trouble, why it waits, or
  // why its state last changed.
  struct StateOfJob {
    std::string job;
    v1::JobState state;
    std::string reason;  // see CountTransition()
  };
  void SetStates(const std::vector<StateOfJob>& jobs) ABSL_LOCKS_EXCLUDED(mu_);
  // Attached: has an open stream. Draining: gets no new work and ends soon. Silent: its stream is
  // broken, and it may reattach until its lease expires. After that it is lost and not a member.
  enum class MemberState { kAttached, kDraining, kSilent };
  void SetMembers(v1::Role role, MemberState state, int count);
  // The number of workers that waiting and running jobs could use together. A fleet may be scaled
  // by it.
  struct Workers {
    int64_t min = 0;  // so that no job waits
    int64_t max = 0;  // that the jobs could use
  };
  void SetWorkersWanted(const Workers& workers);
  // Sets the gauges of a job that has members. `first_step` is 0, or the step of the checkpoint
  // that the job started from. `has_trouble`: v1::Job.trouble is set.
  void SetJob(const std::string& job, const v1::Job& record, int64_t first_step, bool has_trouble)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Shows how the workers' steps spend their time; see StepGauges.
  void SetSteps(const std::string& job, const std::vector<v1::MemberTiming>& timings);
  void SetHeartbeatAge(v1::Role role, const std::string& member, double seconds);
  void Publish() ABSL_LOCKS_EXCLUDED(mu_);

  // ---- Counters and histograms.
  // Counts a recovery of a job that has members. `lost`: the role of the member that was lost or
  // leaves. See CountTransition() for `reason`.
  void CountRecovery(const std::string& job, const std::string& reason,
                     std::optional<v1::Role> lost) ABSL_LOCKS_EXCLUDED(mu_);
  void SpanEnded(JobTimeline::Span span, absl::Duration took);
  // Records that a member in use by jobs was lost, after a silence of this length.
  void LossDetected(absl::Duration silence);
  // Takes the last checkpoint of a job that has not ended. The gauges show it from the next
  // Publish() to ForgetJob().
  void ShowCheckpoint(const std::string& job, int64_t step, double unix_seconds)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Counts a checkpoint that took `took` to write. `job`: nullopt if the job has no
  // members now; then only the totals count it.
  void CountCheckpoint(const std::optional<std::string>& job, absl::Duration took)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Counts a checkpoint that could not be written, by the reason of `why`. Unknown reasons count as
  // "OTHER".
  void CountCheckpointFailure(const std::optional<std::string>& job, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The job has no members for now. Keeps only its last checkpoint, from which it will continue.
  void RestJob(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);
  void ForgetJob(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);

  prometheus::Histogram& store_commit_seconds;
  prometheus::Counter& checkpoint_bytes;
  prometheus::Counter& checkpoints_damaged;  // counted at every attempt to read one
  prometheus::Counter& lease_expiries;
  prometheus::Histogram& tick_lateness;

 private:
  void Forget(const std::string& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Limit of different reasons. Muster itself uses about 50. The rest is a margin against members
  // that invent reasons.
  static constexpr size_t kReasonsMax = 64;

  std::string BoundedReason(const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  prometheus::Counter& RecoveriesOf(const std::string& job, const std::string& reason,
                                    std::optional<v1::Role> lost)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Failure counters by reason, for one job or for all jobs that this process has known. Each
  // starts at 0.
  using Failures = std::array<prometheus::Counter*, 6>;
  Failures MakeCheckpointFailures(const char* name, const char* help, MetricLabels labels);
  // The counters and histograms of a job that has members.
  struct JobSeries {
    absl::flat_hash_set<prometheus::Counter*> recoveries;
    prometheus::Histogram* checkpoint_seconds = nullptr;
    Failures checkpoint_failures = {};
  };
  JobSeries& SeriesOf(const std::string& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  prometheus::Histogram& RecoveryPhase(const char* phase);

  Metrics* const metrics_;
  const std::array<prometheus::Histogram*, 6> spans_;  // by JobTimeline::Span
  prometheus::Histogram& detect_;
  prometheus::Histogram& checkpoint_seconds_;
  const Failures checkpoint_failures_;
  const std::shared_ptr<GaugeSnapshot> gauges_ = std::make_shared<GaugeSnapshot>();
  StepGauges steps_{gauges_.get()};  // used by the thread that sets gauges
  absl::Mutex mu_;
  absl::flat_hash_set<std::string> reasons_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, JobSeries> jobs_ ABSL_GUARDED_BY(mu_);
  struct LastCheckpoint {
    int64_t step;
    double unix_seconds;
  };
  absl::flat_hash_map<std::string, LastCheckpoint> last_checkpoints_
      ABSL_GUARDED_BY(mu_);  // by job
};

}  // namespace muster
