// Runs a graph on a device: memory planned once from liveness, no allocation per step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/byte_values.h"
#include "lib/collective/communicator.h"
#include "lib/collective/gradient_layout.h"
#include "lib/engine/device.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

class Profile;

// What a run waits for and announces. Called on the thread that runs.
class ParameterFlow {
 public:
  virtual ~ParameterFlow() = default;

  // Before the first node of a run that reads parameter `p`, or before its gradient is announced
  // where no node reads it (a statistic): returns once its values may be read. An error ends the
  // run.
  virtual absl::Status AwaitParameter(int p) = 0;

  // d loss / d parameter `p` is final in its memory, and no later node of this run reads the
  // parameter's values: they may be overwritten. Announced once per parameter of a differentiated
  // graph, as early as possible.
  virtual absl::Status GradientReady(int p) = 0;

  // Once in a run: the next run's rows may be given now (Executor::TakeRows), to this executor or
  // to another one of the device. A GPU has been handed the whole run and computes what is left of
  // it; on the CPU nothing is left.
  virtual absl::Status RowsMayCome() { return absl::OkStatus(); }

  // In place of GradientReady(), where the executor has peers: the sum over all of them of this
  // device's slice of `bucket` is in the gradients' host memory, and the parameters of the bucket
  // are not read any more on this device.
  virtual absl::Status SliceReduced(int /*bucket*/) {
    return absl::UnimplementedError("a flow for executors without peers");
  }
};

// What GPUs share that compute parts of one batch. They sum gradients among themselves, a bucket at
// a time, and each sends the sum of its slice to the host; each fetches its slice of a bucket's
// values and hands it to the others. So every byte crosses to and from the host once, however many
// GPUs there are. (CPU devices compute on shared memory and have no peers.)
struct ExecutorPeers {
  Communicator* communicator = nullptr;    // this device's
  const GradientLayout* layout = nullptr;  // of both memories
  float* parameters = nullptr;             // host f32[layout->elements], one for all devices
  float* gradients = nullptr;              // likewise
};

// What differs from run to run: see "Numbers that come with a run" in lib/graph/ops.md.
struct RunArguments {
  float loss_scale = 1;  // S of fp16: gradients inside the run carry it, those that leave do not
  int64_t batch = 0;     // samples of the global batch; 0: those of this run are all
  int64_t first_position = 0;  // of this run's first sample in the global batch
  // By graph input: how many of the global batch's targets count (differ from ignore_index). Read
  // for targets of losses with an ignore_index; empty: this run's targets are all there are.
  absl::Span<const int64_t> counted_targets;
  uint64_t seed = 0;  // of dropout
  int64_t step = 0;
  // Micro-batches of a step: the first assigns gradients and the others add to them; gradients are
  // announced in the last.
  bool is_first_micro_batch = true;
  bool is_last_micro_batch = true;
};

// Thread-compatible. Several executors may share parameter memory while nobody writes it, and
// gradient memory when they take turns as micro-batches.
class Executor {
 public:
  struct Options {
    int64_t batch = 0;         // samples of a run
    Device* device = nullptr;  // outlives the executor
    // One pointer per parameter (index = parameter id), host f32[elements] in every precision (but
    // for narrow_parameters), owned by the caller, 64-byte aligned. A device that computes
    // elsewhere or in another type copies a parameter when its flow has delivered it, and a
    // gradient before it is announced.
    absl::Span<float* const> parameters;
    // By parameter: whether its memory has, from its beginning on, not floats but values in the
    // type that the graph computes with, which has 16 bits: nothing is converted then. Empty: none.
    // Not with `peers`.
    std::vector<bool> narrow_parameters;
    // As `parameters`, floats; empty for a graph that was not differentiated.
    absl::Span<float* const> gradients;
    // By graph input, where rows come by TakeRows() and not through input(): null for rows that are
    // as the graph declares them, else what each of their bytes stands for, of an f32 input. The
    // tables outlive the executor.
    absl::Span<const kernels::ByteValues* const> row_values;
    bool micro_batches = false;  // whether runs will ever add to the gradients of the run before
    bool tf32 = false;           // matrix products of f32 tensors in TF32 where the device has it
    bool deterministic = true;   // only kernels that repeat to the bit
    // Null: alone. All peers run the same training graph step by step, each on its thread. What it
    // points to outlives the executor; `parameters` and `gradients` above point into its memory.
    const ExecutorPeers* peers = nullptr;
    Profile* profile = nullptr;  // takes the time of every node of every run; outlives the executor
  };

  // Of `options`.
  static bool IsNarrow(const Options& options, int p) {
    return !options.narrow_parameters.empty() && options.narrow_parameters[p];
  }

  struct MemoryNeed {
    int64_t arena_bytes = 0;      // activations and temporaries
    int64_t parameter_bytes = 0;  // values and gradients, in every copy that the device holds
  };

  virtual ~Executor() = default;

  // Host memory of a graph input, to be filled before Run(), which leaves it as it is. Of an
  // executor without Options.row_values.
  virtual absl::Span<std::byte> input(absl::string_view name) = 0;

  // Of one with them: the rows of the next run, by graph input. Called between runs, or by
  // ParameterFlow::RowsMayCome(): then they come to a GPU while it computes. Their memory is the
  // caller's again when the run that was under way has returned, else the next one. A run for which
  // none were taken has those of the run before. Errors are the device's.
  virtual absl::Status TakeRows(absl::Span<const absl::Span<const std::byte>> rows) = 0;

  // A tensor named in Graph.loss, logits or correct as f32 on the host, after Run(). Valid until
  // the next Run(). What is more than a number is copied, and the copy's memory taken, when it is
  // first asked for: errors are those of Device::Allocate and of the device.
  virtual absl::StatusOr<absl::Span<const float>> output(absl::string_view name) const = 0;

  // One pass over all nodes; outputs are there and gradients announced when it returns. `flow` may
  // be null: nothing is waited for or announced. INVALID_ARGUMENT for data outside the model's
  // range (a token id beyond the vocabulary). INTERNAL, reason "DEVICE_LOST", when the GPU failed
  // in a way that stays: the message names the nodes that were running, and from then on the
  // process gets this error from everything on that GPU.
  virtual absl::Status Run(const RunArguments& arguments, ParameterFlow* flow) = 0;

  virtual int64_t arena_bytes() const = 0;  // activations and temporaries
};

}  // namespace muster
