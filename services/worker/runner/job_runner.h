// The interface of a worker's job to the part that trains: Muster's own engine (Trainer), or a
// program outside of Muster (ExternalLoop).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// One thread calls Prepare(), Start(), Step(), Drain() and GiveUp(). Any thread may call the other
// methods, which return at once.
class JobRunner {
 public:
  virtual ~JobRunner() = default;

  // Blocks until the job can start. Pause() ends the wait with OK.
  virtual absl::Status Prepare() { return absl::OkStatus(); }

  // Connects to the shards and begins to fetch. `total_steps` is the number of updates of the whole
  // job. `addresses` are as in GradientExchange::Connect.
  virtual absl::Status Start(int64_t total_steps, std::vector<std::string> addresses) = 0;
  // Runs one step. Returns ABORTED after Pause() if it would have to wait; then call Drain(). Other
  // errors are final.
  virtual absl::Status Step() = 0;
  // Returns whether no step is left to begin.
  virtual bool done() const = 0;
  // Call after Pause(). Blocks, without a limit, until every pushed gradient is answered, and
  // completes that step.
  virtual absl::Status Drain() = 0;
  // Returns the first unfinished step.
  virtual int64_t next_step() const = 0;

  // Makes Step() return instead of waiting for other workers.
  virtual void Pause() = 0;
  // Makes every call return `why` (an error) as soon as possible.
  virtual void Cancel(absl::Status why) = 0;
  // As Cancel(), but computed steps are still recorded: call GiveUp() after Step() has returned.
  virtual void Halt(absl::Status why) = 0;
  // Records the last computed step. If some of its answers are missing, the gradient's norm is NaN.
  virtual absl::Status GiveUp() = 0;

  // Returns the step at which training failed.
  virtual int64_t failed_step() const = 0;
  // Returns the member that caused the failure, or "".
  virtual std::string culprit() const = 0;
  // Returns the times of this generation's steps by phase, of all steps that were computed.
  virtual v1::StepTiming timing() const = 0;
  virtual v1::DatasetFacts dataset() const = 0;
  // Returns all that the bits of its results depend on of the devices, in one printable line of at
  // most 1 KiB; see JobReport. "" if the runner does not know.
  virtual std::string device_kind() const { return ""; }
  // Returns the address at which the other workers of an allreduce job reach this one, or "".
  virtual std::string address() const { return ""; }

  // Only with a program. Returns the present wait for it, if there is one.
  virtual std::optional<v1::ProgramWait> program_wait() const { return std::nullopt; }
  // Only with a program. Tells the program the result of an evaluation.
  virtual void Evaluated(const v1::EvaluationResult&) {}
  // Only with a program. The worker leaves the fleet, so this is the reason why the program ends.
  virtual void WorkerLeaves() {}
};

}  // namespace muster
