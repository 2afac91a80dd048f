// Starts the program of a job beside this worker (JobSpec.program), and again if a signal kills it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/program/program_group.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Returns PERMISSION_DENIED (reason "PROGRAMS_NOT_ALLOWED") if the job has a program and this
// worker may start none.
absl::Status CheckProgramAllowed(const v1::JobSpec& spec, bool allow_programs);

// The lines of the program go to this worker's log, each after "program: ".
//
// ExternalLoop uses it like this. It must keep the object over generations of the job, because a
// program stays attached when the members change:
//
//   Prepare():                     if (spec.has_program() && program_ == nullptr) Start(...)
//   in each wait for the program:  wake up on `ended`, then RETURN_IF_ERROR(program_->Check())
//   after each step:               program_->StepFinished()
//   after END was sent:            program_->Stop(grace); no Check() any more
//
// One thread uses it. `ended` is called on other threads.
class ProgramProcess {
 public:
  // Restarts in a row without a finished step.
  static constexpr int kRestartsMax = 3;

  struct Options {
    std::string job;              // its id
    std::string socket;           // --program_socket of this worker
    std::function<void()> ended;  // wakes the caller, which then calls Check()
  };

  // Blocks until the processes have started. Returns the errors of ProgramGroup::Start(), with the
  // reason "PROGRAM_FAILED". Requires: CheckProgramAllowed() has returned OK.
  static absl::StatusOr<std::unique_ptr<ProgramProcess>> Start(const v1::ProgramSpec& spec,
                                                               Options options);
  // Kills the program if it still runs.
  ~ProgramProcess();

  // Returns OK if the program runs. If a signal has killed it, starts it again; with several
  // processes this blocks for up to 5 s, until the others have ended. Otherwise returns
  // INVALID_ARGUMENT (reason "PROGRAM_FAILED") with the end of its standard error: it ended with an
  // exit code, even with 0, before its job did, or the restarts are used up.
  absl::Status Check();
  void StepFinished() { restarts_ = 0; }

  // The program has `grace` to end by itself. Then it gets SIGTERM, and after `grace` once
  // more SIGKILL. Blocks until all processes have ended.
  void Stop(absl::Duration grace);

 private:
  ProgramProcess(const v1::ProgramSpec& spec, Options options)
      : spec_(spec), options_(std::move(options)) {}
  absl::Status StartGroup();

  const v1::ProgramSpec spec_;
  const Options options_;
  int restarts_ = 0;
  std::unique_ptr<ProgramGroup> group_;
};

}  // namespace muster
