// The interface of the data plane to the trainer and its devices: turns a worker's gradients into
// new parameter values.
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

// Options that arrange the traffic. The defaults are the fastest; the other values show what each
// option gains.
struct ExchangeTuning {
  bool overlap = true;   // false: a forward begins when all answers of the last step are here
  bool priority = true;  // false: chunks are sent in the order in which they become final
  // Limits the gradients that are being sent over all links except shared memory, see SendWindow.
  // In a ring, limits all payloads. The trainer raises it to at least two chunks.
  int64_t inflight_bytes_max = limits::kInflightBytesMax;
  Trace* trace = nullptr;  // outlives the exchange; null: no trace
};

// Serves one generation of one job. First brings the values of every parameter at plan.first_step.
// Then takes gradients chunk by chunk as they become final, and writes the new values directly into
// the parameters' memory.
//
// Version v of a parameter contains the updates of this worker's steps 0 .. v - 1. Versions never
// decrease. The first failure is final: every wait and push returns it from then on. Thread-safe.
class GradientExchange {
 public:
  virtual ~GradientExchange() = default;  // drops transfers under way

  // Connects to the peers. Blocks until all required peers have answered. `total_steps` is the
  // number of updates of the whole job. `addresses` are those of all shards, if the plan has none
  // (allreduce). Returns UNAVAILABLE (reason PS_UNREACHABLE, in a ring PEER_UNREACHABLE) if a peer
  // does not answer; the message names its member. Call once.
  virtual absl::Status Connect(int64_t total_steps, std::vector<std::string> addresses) = 0;

  // The address of this worker's shard; "" if it has none (all modes except allreduce).
  virtual std::string address() const { return ""; }

  // Returns whether the parameter's values have exactly this `version`. Costs one load. A frozen
  // parameter that is here has every version.
  virtual bool HasParameter(int parameter, int64_t version) const = 0;

  // Blocks until the parameter (or all parameters) has `version`. Returns ABORTED if it does not
  // have it at Interrupt() or once overtaken(). Returns DEADLINE_EXCEEDED (reason STEP_TIMEOUT)
  // after a timeout; the message names step, chunk, shard and member.
  virtual absl::Status AwaitParameter(int parameter, int64_t version) = 0;
  virtual absl::Status AwaitVersion(int64_t version) = 0;

  // Only for fp16 jobs. Blocks until a value of `version` is here, which brings the loss scale for
  // gradients of step `version`. Returns the codes of AwaitParameter().
  virtual absl::StatusOr<float> AwaitLossScale(int64_t version) = 0;

  // Blocks until every push and fetch has been answered, even when interrupted. Returns early only
  // on a failure or after the timeout above. After Interrupt() there is no timeout, because the
  // save for which the worker is paused may take long.
  virtual absl::Status AwaitAnswers() = 0;

  // Sends the gradient of `chunk`, which is final, for `step`. Requires: the chunk has version
  // `step`, and no thread reads its values until they have version step + 1. Never waits for other
  // workers. Does nothing for a frozen parameter.
  virtual absl::Status Push(ChunkId chunk, int64_t step) = 0;

  // Only with backup workers. overtaken(): the others closed a step without this worker's gradient.
  // They and some of this worker's parameters are beyond the awaited version. CatchUp(): blocks
  // until all parameters have one version, and returns it. Requires: no thread computes with the
  // parameters, and every chunk of the last step was pushed. Interrupt() does not end it. Returns
  // DEADLINE_EXCEEDED as above if no answer arrives for the length of the timeout.
  virtual bool overtaken() const { return false; }
  virtual absl::StatusOr<int64_t> CatchUp() { return version(); }

  // The version of all parameters; plan.first_step - 1 if some are not here yet.
  virtual int64_t version() const = 0;

  // Returns the norm of the gradient that led to `version`, which is version() or the one before.
  // It is the norm of the whole batch's gradient. If every worker's gradient is an update of its
  // own (ssp, asp, local_sgd), it is the norm of this worker's gradient.
  virtual double GradientNorm(int64_t version) const = 0;

  // Returns what this chunk of values adds to the square of that norm. Not finite if an element
  // of its gradient is not finite.
  virtual double GradientSquares(ChunkId chunk, int64_t version) const = 0;

  // Ends the interruptible waits, now and from now on, because the job pauses.
  virtual void Interrupt() = 0;

  // Makes every call return `why`, unless the exchange has failed before.
  virtual void Fail(absl::Status why) = 0;
  virtual bool failed() const = 0;

  // The first step with missing answers.
  virtual int64_t step() const = 0;

  // The member that caused the failure, or "".
  virtual std::string culprit() const = 0;
};

}  // namespace muster
