// Traces jobs: asks every member to record its next steps, collects the recordings and converts
// them to one clock.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/telemetry/trace.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/diagnostics/clock_offset.h"
#include "services/coordinator/membership/fleet.h"
#include "services/coordinator/registry/job_registry.h"

namespace muster {

// Orders go down the members' streams, and recordings come with their reports. First all members
// get the order to record, and workers report when they have made the steps. Then all get the order
// to send the events of these steps. Before and after, members answer some probes at once, which
// give the clock offsets. A member that fails in any of this is named, and the rest is delivered.
//
// No call blocks. The answer callback is called without any lock, on the thread of Ask(), of a
// member's report or of Expire(). It is called once, or never if Drop() came first. Thread-safe.
class JobTraces {
 public:
  // Both must outlive this. `steady`: nanoseconds of this process's steady clock.
  JobTraces(JobRegistry* registry, Fleet* fleet, std::function<int64_t()> steady = Trace::Now)
      : registry_(registry), fleet_(fleet), steady_(std::move(steady)) {}

  using Answer = std::function<void(absl::StatusOr<v1::TraceJobResponse>)>;
  // Starts a trace. Returns a number for Drop(), or 0 if the request was answered already. Answers
  // - INVALID_ARGUMENT for a bad request,
  // - NOT_FOUND if there is no such job,
  // - FAILED_PRECONDITION (reason "JOB_NOT_RUNNING") if the job does not run,
  // - ABORTED ("TRACE_GOES_ON") if the job is already being traced, or
  // - RESOURCE_EXHAUSTED ("TOO_MANY_CALLS") beyond limits::kTracesMax concurrent traces.
  uint64_t Ask(const v1::TraceJobRequest& request, Answer answer) ABSL_LOCKS_EXCLUDED(mu_);

  // Drops a trace because its caller is gone.
  void Drop(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);

  // Takes the parts of a member's report. Ignores parts that were not requested.
  void Take(const std::string& member, const v1::MemberReport& report) ABSL_LOCKS_EXCLUDED(mu_);

  // Handles deadlines and lost members. Called at every tick.
  void Expire() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Member {
    v1::MemberTrace told;  // times are by the member's clock until the end
    std::string incarnation;
    ClockOffset before, after;  // clock offsets before and after the steps
    uint64_t probe = 0;         // the last one sent
    int64_t probe_sent = 0;
    int probes_left = 0;
    absl::Time asked = absl::InfiniteFuture();
    bool begun = false;  // it has answered
    bool over = false;   // a worker has made its steps
    int64_t first_step = 0;
    int64_t end_step = 0;
    bool all_told = false;

    bool failed() const { return !told.trouble().empty(); }
    bool done() const { return failed() || (all_told && probes_left == 0); }
  };
  struct Running {
    std::string job;
    Answer answer;
    int64_t steps = 0;
    // The workers make the same step at almost the same time, within one step. So all of them
    // report the same steps, even if they began to record at different times.
    bool together = false;
    // Workers begin to record after all other members, because those would miss the events of the
    // first steps.
    bool workers_asked = false;
    absl::Time begin;
    int64_t begin_steady = 0;
    absl::Duration timeout;
    absl::Time telling_since = absl::InfiniteFuture();
    std::vector<Member> members;

    // Additional steps to record: when one worker has made them, the others have made all requested
    // steps.
    int64_t margin() const { return together ? 2 : 0; }
    bool telling() const { return telling_since != absl::InfiniteFuture(); }
  };
  // Actions to perform after mu_ is released.
  struct Actions {
    std::vector<std::pair<std::string, v1::Directive>> orders;
    std::vector<std::pair<Answer, v1::TraceJobResponse>> answers;
  };

  absl::StatusOr<Running> Begin(const v1::TraceJobRequest& request);
  void TakePart(Running& running, Member& member, const v1::TracePart& part, int64_t received,
                Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  v1::Directive& Order(uint64_t number, const Running& running, const Member& member,
                       Actions& actions) const;
  void AskToRecord(uint64_t number, const Running& running, Member& member, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Probe(uint64_t number, const Running& running, Member& member, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AskToTell(uint64_t number, Running& running, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Advance(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static v1::TraceJobResponse Finish(Running& running);
  void Perform(Actions actions);

  JobRegistry* const registry_;
  Fleet* const fleet_;
  const std::function<int64_t()> steady_;
  absl::Mutex mu_;
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  absl::btree_map<uint64_t, Running> running_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
