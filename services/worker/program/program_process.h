// Starts the program of a job beside this worker (JobSpec.program), and again if a signal kills it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/program/program_group.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Returns PERMISSION_DENIED (reason "PROGRAMS_NOT_ALLOWED") if the job has a program and this
// worker may start none.
absl::Status CheckProgramAllowed(const v1::JobSpec& spec, bool allow_programs);

// The lines of the program go to this worker's log, each after "program: ". A thread of this object
// starts the program again if a signal has killed it. Thread-safe, except Stop().
//
// ExternalLoop keeps it over generations of the job, because a program stays attached when the
// members change.
class ProgramProcess {
 public:
  // Restarts in a row without a finished step.
  static constexpr int kRestartsMax = 3;

  struct Options {
    std::string job;     // its id
    std::string socket;  // at which programs attach to this worker
    // Called at most once, on another thread, if the program ends and is not started again: it
    // ended with an exit code, even with 0, or the restarts are used up. Then it gets UNKNOWN
    // (reason "PROGRAM_FAILED") with the end of the program's standard error. Or the command
    // cannot be started any more. Stop() and the destructor wait for it, so it
    // must not call them.
    std::function<void(absl::Status)> failed;
  };

  // Blocks until the processes have started. Returns the errors of ProgramGroup::Start(), with the
  // reason "PROGRAM_FAILED". Requires: CheckProgramAllowed() has returned OK.
  static absl::StatusOr<std::unique_ptr<ProgramProcess>> Start(const v1::ProgramSpec& spec,
                                                               Options options);
  // Kills the program if it still runs. Blocks until `failed` has returned.
  ~ProgramProcess();

  // The job has made progress, so the program may be restarted as often as at first.
  void StepFinished() ABSL_LOCKS_EXCLUDED(mu_);

  // Tells that the program may end from now on: no end is a failure, and none is followed by a new
  // start.
  void MayEnd() ABSL_LOCKS_EXCLUDED(mu_);

  // The program has `grace` to end by itself, for example after END. Then it gets SIGTERM, and
  // after `grace` once more SIGKILL. Blocks until all processes have ended.
  void Stop(absl::Duration grace) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  ProgramProcess(const v1::ProgramSpec& spec, Options options)
      : spec_(spec), options_(std::move(options)) {}
  absl::Status StartGroup();
  void Supervise() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status StartAgain(const ProgramGroup::Outcome& outcome) ABSL_LOCKS_EXCLUDED(mu_);
  void EndSupervision() ABSL_LOCKS_EXCLUDED(mu_);

  const v1::ProgramSpec spec_;
  const Options options_;
  absl::Mutex mu_;
  bool has_ended_ ABSL_GUARDED_BY(mu_) = false;  // a group has an outcome
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  int restarts_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<ProgramGroup> group_;  // used by the thread while it runs
  std::jthread supervisor_;              // last: it uses the others
};

}  // namespace muster
