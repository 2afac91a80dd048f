#include "cli/chaos/chaos.h"

#include <algorithm>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

// How often a wait looks for members that ended by themselves and for recoveries that are overdue.
constexpr absl::Duration kLookEvery = absl::Milliseconds(200);

class ChaosRun {
 public:
  ChaosRun(const std::string* job, LocalCluster* cluster, CoordinatorClient* client,
           const ChaosOptions* options)
      : job_(job), cluster_(cluster), client_(client), options_(options), begin_(SteadyNow()) {}

  absl::StatusOr<ChaosReport> Run() {
    std::jthread watcher([this](std::stop_token stop) { Watch(std::move(stop)); });
    std::optional<Interrupt::Registration> registration;
    if (options_->interrupt != nullptr) {
      registration.emplace(*options_->interrupt, [this] {
        absl::MutexLock lock(&mu_);
        interrupted_ = true;
      });
    }
    const absl::Status struck = StrikeAll();
    // Members are restarted even after an error, so that all of them run on return.
    RETURN_IF_ERROR(Revive());
    RETURN_IF_ERROR(struck);
    absl::MutexLock lock(&mu_);
    if (interrupted_) return absl::CancelledError("interrupted");
    RETURN_IF_ERROR(watched_);
    return ChaosReport{.job = tracker_.job(),
                       .strikes = {tracker_.strikes().begin(), tracker_.strikes().end()},
                       .recoveries = tracker_.recoveries(),
                       .steps_again = tracker_.steps_again(),
                       .other_ends = other_ends_,
                       .fault = fault_};
  }

 private:
  absl::Duration Now() const { return SteadyNow() - begin_; }

  void Say(const std::string& line) const {
    if (options_->say) options_->say(line);
  }

  void Watch(std::stop_token stop) {
    // No limit on an outage: the run itself kills the coordinator.
    const absl::Status status =
        client_->Watch(*job_, {.away_max = absl::InfiniteDuration(), .stop = std::move(stop)},
                       [this](const v1::WatchJobResponse& update) {
                         absl::MutexLock lock(&mu_);
                         tracker_.Take(update, Now());
                         return CoordinatorClient::WatchStep::kContinue;
                       });
    absl::MutexLock lock(&mu_);
    watched_ = status;
    ended_ = true;
  }

  bool Over() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ended_ || interrupted_ || !fault_.empty();
  }
  bool IsOver() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return Over();
  }

  // Blocks until `done`, until the run is over, or for up to `timeout`. Restarts members that end
  // by themselves meanwhile.
  absl::Status Wait(absl::Duration timeout, absl::FunctionRef<bool(const RecoveryTracker&)> done)
      ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::Duration deadline = Now() + timeout;
    for (;;) {
      {
        absl::MutexLock lock(&mu_);
        auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return Over() || done(tracker_); };
        if (AwaitFor(&mu_, absl::Condition(&ready), std::min(deadline - Now(), kLookEvery))) break;
        NoteOverdue();
      }
      RETURN_IF_ERROR(Revive());
      if (Now() >= deadline) break;
    }
    return absl::OkStatus();
  }

  void NoteOverdue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Strike* pending = tracker_.pending();
    if (pending == nullptr || Now() - pending->at <= options_->deadline) return;
    const v1::Job& job = tracker_.job();
    fault_ = absl::StrCat("no step within ", absl::FormatDuration(options_->deadline),
                          " after the strike at step ", pending->step, " (", pending->member,
                          "); the job is ", v1::JobState_Name(job.state()), " at step ",
                          job.progress().step(), job.message().empty() ? "" : ": ", job.message());
  }

  absl::Status Revive() {
    ASSIGN_OR_RETURN(const std::vector<LocalCluster::Revival> revivals, cluster_->Heal());
    for (const LocalCluster::Revival& revival : revivals) {
      other_ends_.push_back(absl::StrCat(revival.name, " ", revival.end));
      Say(absl::StrCat(other_ends_.back(), " without a strike; restarted with pid ", revival.pid));
    }
    return absl::OkStatus();
  }

  absl::Status StrikeAll() {
    ChaosDice dice(options_->seed, options_->roles);
    RETURN_IF_ERROR(Wait(absl::InfiniteDuration(), [](const RecoveryTracker& tracker) {
      return tracker.job().state() == v1::RUNNING && tracker.job().progress().step() > 0;
    }));
    {
      absl::MutexLock lock(&mu_);
      bounds_ = tracker_.job().spec().resources().workers();
    }
    const absl::Duration until = Now() + options_->duration;
    for (int strikes = 0; strikes < options_->strikes_max; ++strikes) {
      const ChaosDice::Throw next = dice.Next();
      RETURN_IF_ERROR(Wait(absl::InfiniteDuration(), [this](const RecoveryTracker& tracker) {
        return options_->overlaps ||
               (tracker.pending() == nullptr && tracker.job().state() == v1::RUNNING);
      }));
      SayRecovered();
      RETURN_IF_ERROR(
          Wait(next.gap * options_->every, [](const RecoveryTracker&) { return false; }));
      if (IsOver() || Now() >= until) break;
      RETURN_IF_ERROR(StrikeOne(next));
    }
    RETURN_IF_ERROR(Wait(absl::InfiniteDuration(), [this](const RecoveryTracker& tracker) {
      return !options_->awaits_end && tracker.pending() == nullptr;
    }));
    SayRecovered();
    return absl::OkStatus();
  }

  // Members of `role` that serve the job and run.
  std::vector<std::string> Targets(ChaosRole role) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const v1::Job& job = tracker_.job();
    std::vector<std::string> names;
    if (role == ChaosRole::kPs) names.assign(job.ps().begin(), job.ps().end());
    if (role == ChaosRole::kWorker) names.assign(job.workers().begin(), job.workers().end());
    if (role == ChaosRole::kCoordinator) names = {"coordinator"};
    std::erase_if(names, [&](const std::string& name) { return !cluster_->running(name); });
    return names;
  }

  // Returns a number of workers within the job's first bounds that is not its present maximum, or 0
  // if there is none.
  int OtherNumber(uint64_t pick) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<int> numbers;
    for (int number = bounds_.min(); number <= bounds_.max(); ++number) {
      if (number != tracker_.job().spec().resources().workers().max()) numbers.push_back(number);
    }
    return numbers.empty() ? 0 : numbers[pick % numbers.size()];
  }

  // Repeats a call until the coordinator answers or the run is over. A job that has ended since is
  // no error: the watch reports that.
  absl::Status Ask(absl::FunctionRef<absl::Status()> call) ABSL_LOCKS_EXCLUDED(mu_) {
    for (;;) {
      const absl::Status answer = call();
      if (absl::IsFailedPrecondition(answer)) return absl::OkStatus();
      if (!absl::IsUnavailable(answer) || IsOver()) return answer;
      RETURN_IF_ERROR(Wait(kLookEvery, [](const RecoveryTracker&) { return false; }));
    }
  }

  // Suspends the job at a checkpoint and resumes it, as `muster scale` does.
  absl::Status Scale(uint64_t pick) ABSL_LOCKS_EXCLUDED(mu_) {
    v1::ResumeJobRequest request;
    {
      absl::MutexLock lock(&mu_);
      const v1::Job& job = tracker_.job();
      const int number = OtherNumber(pick);
      if (number == 0) return absl::OkStatus();
      request.set_name(job.name());
      *request.mutable_resources() = job.spec().resources();
      request.mutable_resources()->mutable_workers()->set_max(number);
      const std::string strike =
          absl::StrCat("scale to ", number, number == 1 ? " worker" : " workers");
      tracker_.Struck(ChaosRole::kScale, strike, RecoveryTracker::Until::kNextGeneration, Now());
      Say(absl::StrFormat("%6.1f s  %s at step %d", absl::ToDoubleSeconds(Now()), strike,
                          job.progress().step()));
    }
    RETURN_IF_ERROR(Ask([this] { return client_->SuspendJob(*job_).status(); }));
    RETURN_IF_ERROR(Wait(absl::InfiniteDuration(), [](const RecoveryTracker& tracker) {
      return tracker.job().state() == v1::SUSPENDED;
    }));
    {
      absl::MutexLock lock(&mu_);
      if (interrupted_ || !fault_.empty()) {
        Say(absl::StrCat(*job_, " may stay suspended; muster resume ", *job_, " continues it"));
      }
    }
    return Ask([&] { return client_->ResumeJob(request).status(); });
  }

  absl::Status StrikeOne(const ChaosDice::Throw& next) {
    if (next.role == ChaosRole::kScale) return Scale(next.pick);
    const std::vector<std::string> targets = Targets(next.role);
    if (targets.empty()) return absl::OkStatus();
    const std::string& member = targets[next.pick % targets.size()];
    const bool kills = options_->signal == SIGKILL;
    const pid_t pid = cluster_->pid(member);
    {
      absl::MutexLock lock(&mu_);
      // The tracker must know of the strike before its effects arrive. A killed ps or worker always
      // ends the generation; a killed coordinator or a stopped member may not.
      tracker_.Struck(next.role, member,
                      kills && next.role != ChaosRole::kCoordinator
                          ? RecoveryTracker::Until::kNextGeneration
                          : RecoveryTracker::Until::kNextStep,
                      Now());
      Say(absl::StrFormat("%6.1f s  %s %s (pid %d) at step %d", absl::ToDoubleSeconds(Now()),
                          kills ? "killed" : "stopped", member, pid,
                          tracker_.job().progress().step()));
    }
    // Kill() fails if the member has just ended by itself. Restart() and Revive() handle that case.
    cluster_->Kill(member, options_->signal).IgnoreError();
    Linger(kills ? options_->away : options_->stop_for);
    if (kills) {
      RETURN_IF_ERROR(cluster_->Restart(member));
    } else {
      cluster_->Kill(member, SIGCONT).IgnoreError();
    }
    absl::MutexLock lock(&mu_);
    tracker_.Returned(member);
    return absl::OkStatus();
  }

  // Waits without calling Revive(), which would restart the member that is meant to be away.
  void Linger(absl::Duration span) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    AwaitFor(&mu_, absl::Condition(&interrupted_), span);
  }

  void SayRecovered() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    for (; said_ < tracker_.strikes().size() && tracker_.strikes()[said_].recovered(); ++said_) {
      const Strike& strike = tracker_.strikes()[said_];
      Say(absl::StrFormat("%6.1f s  a step again %.2f s after %s",
                          absl::ToDoubleSeconds(strike.at + strike.recovery),
                          absl::ToDoubleSeconds(strike.recovery), strike.member));
    }
  }

  const std::string* const job_;
  LocalCluster* const cluster_;
  CoordinatorClient* const client_;
  const ChaosOptions* const options_;
  const absl::Duration begin_;
  std::vector<std::string> other_ends_;
  size_t said_ = 0;  // strikes whose recovery was reported

  absl::Mutex mu_;
  RecoveryTracker tracker_ ABSL_GUARDED_BY(mu_);
  v1::WorkerCount bounds_ ABSL_GUARDED_BY(mu_);  // of the job when the run began
  bool ended_ ABSL_GUARDED_BY(mu_) = false;      // the watch has ended, usually because the job has
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status watched_ ABSL_GUARDED_BY(mu_);
  std::string fault_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<ChaosReport> RunChaos(const std::string& job, LocalCluster& cluster,
                                     CoordinatorClient& client, const ChaosOptions& options) {
  return ChaosRun(&job, &cluster, &client, &options).Run();
}

}  // namespace muster::cli
