// Traces of jobs: asks every member of one to record its next steps, collects what they tell and
// brings it onto one clock.
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

// Orders go down the members' streams, what they tell comes with their reports. First all are asked
// to record, and the workers say when they have made the steps; then all are asked to tell the
// events of these steps. Before and after, some questions are answered at once: from them come the
// clocks' offsets. Whoever fails in any of that is named, and the rest is delivered.
//
// Thread-safe. Nobody waits here: whoever asks is called once, on the thread of a member's report
// or of Expire(), without any lock.
class JobTraces {
 public:
  // Both outlive this. `steady`: nanoseconds of this process's steady clock.
  JobTraces(JobRegistry* registry, Fleet* fleet, std::function<int64_t()> steady = Trace::Now)
      : registry_(registry), fleet_(fleet), steady_(std::move(steady)) {}

  using Answer = std::function<void(absl::StatusOr<v1::TraceJobResponse>)>;
  // INVALID_ARGUMENT; NOT_FOUND; FAILED_PRECONDITION (reason "JOB_NOT_RUNNING"); ABORTED
  // ("TRACE_GOES_ON"); RESOURCE_EXHAUSTED ("TOO_MANY_CALLS") beyond limits::kTracesMax at once. The
  // number is for Drop(); 0: it is answered already.
  uint64_t Ask(const v1::TraceJobRequest& request, Answer answer) ABSL_LOCKS_EXCLUDED(mu_);

  // Nobody waits for it any more.
  void Drop(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);

  // What a member says. What it was not asked for is dropped.
  void Take(const std::string& member, const v1::MemberReport& report) ABSL_LOCKS_EXCLUDED(mu_);

  // Lets time pass, and looks who was lost.
  void Expire() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Member {
    v1::MemberTrace told;  // times are the member's until the end
    std::string incarnation;
    ClockOffset before, after;  // the steps
    uint64_t probe = 0;         // that was sent last
    int64_t probe_sent = 0;
    int probes_left = 0;
    absl::Time asked = absl::InfiniteFuture();
    bool begun = false;  // it has answered
    bool over = false;   // worker: its steps are made
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
    // Workers make the same step at the same time, give or take one: so they tell of the same
    // steps, however far they went between one beginning to record and another.
    bool together = false;
    // Once all others record, who would miss what the first steps do there.
    bool workers_asked = false;
    absl::Time begin;
    int64_t begin_steady = 0;
    absl::Duration timeout;
    absl::Time telling_since = absl::InfiniteFuture();
    std::vector<Member> members;

    // Of steps more than were asked for: when one worker has made them, the others have made all
    // that were.
    int64_t margin() const { return together ? 2 : 0; }
    bool telling() const { return telling_since != absl::InfiniteFuture(); }
  };
  // What is to be done when mu_ is not held any more.
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
