// How a worker's gradients become new parameter values: what the trainer and its devices see of the
// data plane.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/exchange/exchange_metrics.h"
#include "lib/limits/limits.h"
#include "lib/plan/numbers.h"
#include "lib/telemetry/trace.h"
#include "lib/transport/core/transport.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// How the traffic is arranged. The defaults are what is fastest; the others show what each is
// worth.
struct ExchangeTuning {
  bool overlap = true;   // false: the next forward begins when all of a step's answers are in
  bool priority = true;  // false: chunks go out in the order in which they become final
  // Gradients being sent over all links but those of shared memory, see SendWindow. A job whose
  // chunks are large gets two of them at least.
  int64_t inflight_bytes_max = limits::kInflightBytesMax;
  Trace* trace = nullptr;  // outlives the exchange; null: none is taken
};

// Serves one generation of one job. Brings every parameter at plan.first_step, and from then on
// takes gradients as they become final, chunk by chunk, and places the new values straight into the
// parameters' memory.
//
// Version v of a parameter has had the updates of this worker's steps 0 .. v - 1. Versions never go
// back. The first failure is final: every wait and push returns it from then on. Thread-safe.
class GradientExchange {
 public:
  virtual ~GradientExchange() = default;  // drops what is in flight

  // `total_steps`: updates of the whole job. `addresses`: of all shards, where the plan has none
  // (allreduce). Returns when everybody who is needed has answered. Call once. A failure names the
  // shard and its member (UNAVAILABLE, reason PS_UNREACHABLE).
  virtual absl::Status Connect(int64_t total_steps, std::vector<std::string> addresses) = 0;

  // Where the others reach this worker's shard; "" where it has none (all modes but allreduce).
  virtual std::string address() const { return ""; }

  // Whether the parameter's values have just this `version`: costs one load. Frozen parameters have
  // every version once they are here.
  virtual bool HasParameter(int parameter, int64_t version) const = 0;

  // Blocks until the parameter (all parameters) has `version`. ABORTED when that is not so at
  // Interrupt() or once overtaken(), DEADLINE_EXCEEDED (reason STEP_TIMEOUT) after a timeout; the
  // message names step, chunk, shard and member.
  virtual absl::Status AwaitParameter(int parameter, int64_t version) = 0;
  virtual absl::Status AwaitVersion(int64_t version) = 0;

  // Of an fp16 job: blocks until some value of `version` is here, which brings the loss scale for
  // the gradients of step `version`. Codes as AwaitParameter.
  virtual absl::StatusOr<float> AwaitLossScale(int64_t version) = 0;

  // Blocks until everything that was pushed or fetched has been answered, even when interrupted.
  // Ends early only with a failure or, as above, after a timeout, which passes no more once
  // interrupted: a paused worker waits for as long as it takes to save what it was paused for.
  virtual absl::Status AwaitAnswers() = 0;

  // The gradient of `chunk` of `step` is final in its memory, and nobody reads the chunk's values
  // until they have version step + 1. Their version must be `step`. Never waits for others. Of a
  // frozen parameter: does nothing.
  virtual absl::Status Push(ChunkId chunk, int64_t step) = 0;

  // With backup workers: the others closed a step of which this worker's gradient was no part and
  // are beyond the version that it awaited; some of its parameters are, too. CatchUp() is called
  // when nobody computes with them and every chunk of the last step was pushed: it returns when all
  // parameters have one version, and which. Interrupt() does not end it; DEADLINE_EXCEEDED as above
  // when nothing came for as long as the timeout is.
  virtual bool overtaken() const { return false; }
  virtual absl::StatusOr<int64_t> CatchUp() { return version(); }

  // All parameters have it; plan.first_step - 1: not all are here yet.
  virtual int64_t version() const = 0;

  // Norm of the gradient that led to `version`, which is version() or the one before: of the whole
  // batch's gradient, or where every worker's is an update of its own (ssp, asp, local_sgd) of this
  // worker's.
  virtual double GradientNorm(int64_t version) const = 0;

  // What this chunk, of values, adds to the square of that norm; not finite where some element of
  // its gradient is not.
  virtual double GradientSquares(ChunkId chunk, int64_t version) const = 0;

  // Ends the interruptible waits, now and from now on: the job pauses.
  virtual void Interrupt() = 0;

  // Makes everything return `why`, unless it has failed before.
  virtual void Fail(absl::Status why) = 0;
  virtual bool failed() const = 0;

  // The first step whose answers are not all in.
  virtual int64_t step() const = 0;

  // The member to blame for the failure; "" when none.
  virtual std::string culprit() const = 0;
};

}  // namespace muster
