// Runs a graph on a device. Memory is planned once, from liveness; a run allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "kernels/byte_values.h"
#include "lib/collective/communicator.h"
#include "lib/collective/gradient_layout.h"
#include "lib/engine/device.h"
#include "lib/graph/tensor_parallel/placement.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

class Profile;

// The waits and announcements of a run. Called on the thread of Executor::Run().
class ParameterFlow {
 public:
  virtual ~ParameterFlow() = default;

  // Called before the first node of a run that reads parameter `p`. If no node reads it (a
  // statistic), called before its gradient is announced. Returns when its values may be read. An
  // error ends the run.
  virtual absl::Status AwaitParameter(int p) = 0;

  // The gradient of parameter `p` is final in its memory. No later node of this run reads the
  // parameter's values, so they may be overwritten. Called once per parameter of a differentiated
  // graph, as early as possible, in the last micro-batch of a step.
  virtual absl::Status GradientReady(int p) = 0;

  // Called once in a run: the caller may now give the next run's rows (Executor::TakeRows), to this
  // executor or to another one of the device. A GPU has all work of the run in its queue by then
  // and still computes. The CPU has finished the run.
  virtual absl::Status RowsMayCome() { return absl::OkStatus(); }

  // Called in place of GradientReady() if the executor has peers. The sum over all peers of this
  // device's slice of `bucket` is in the gradients' host memory. This device no longer reads the
  // parameters of the bucket.
  virtual absl::Status SliceReduced(int /*bucket*/) {
    return absl::UnimplementedError("a flow for executors without peers");
  }
};

// State shared by GPUs that compute parts of one batch.
//
// The GPUs sum gradients among themselves, one bucket at a time, and each GPU sends the sum of its
// slice to the host. Each GPU fetches its slice of a bucket's values and hands it to the others. So
// every byte crosses to and from the host once, however many GPUs there are. CPU devices compute on
// shared memory and have no peers.
struct ExecutorPeers {
  Communicator* communicator = nullptr;    // this device's
  const GradientLayout* layout = nullptr;  // layout of `parameters` and `gradients`
  // Host memory, f32[layout->elements], one for all devices. Parameters in it may be narrow, see
  // Executor::Options.
  float* parameters = nullptr;
  float* gradients = nullptr;  // host f32[layout->elements], one for all devices
};

// Arguments that differ from run to run: see "Numbers that come with a run" in lib/graph/ops.md.
struct RunArguments {
  // Loss scale S of fp16: gradients inside the run carry it, gradients that leave it do not.
  float loss_scale = 1;
  int64_t batch = 0;           // samples of the global batch; 0: this run has all of them
  int64_t first_position = 0;  // position of this run's first sample in the global batch
  // The number of the global batch's targets that count (differ from ignore_index), for each graph
  // input. Losses with an ignore_index read it. Empty: the global batch has only this run's
  // targets.
  absl::Span<const int64_t> counted_targets;
  uint64_t seed = 0;  // seed of dropout
  int64_t step = 0;
  // Micro-batches of a step: the first one assigns gradients, the others add to them. Gradients are
  // announced in the last one.
  bool is_first_micro_batch = true;
  bool is_last_micro_batch = true;
  // This device's rank among Options.synchronised_devices. All of them run the same graph equally
  // often, each on its own thread. Null if there is one device, or the graph has no synchronised
  // norm.
  Communicator* communicator = nullptr;
  // This device's rank among those that run the other parts of a split graph (SplitTensors). All of
  // them run equally often, each on its own thread and with the same inputs and arguments. Null if
  // the graph is not split.
  Communicator* tensor_parallel = nullptr;
};

// Runs one graph on one device. Thread-compatible.
//
// Several executors may share parameter memory while nothing writes it. They may share gradient
// memory if they take turns as micro-batches.
class Executor {
 public:
  struct Options {
    int64_t batch = 0;         // samples of a run
    Device* device = nullptr;  // outlives the executor
    // One pointer per parameter (index = parameter id) to host f32[elements], for every precision.
    // Exception: narrow_parameters. The caller owns the memory; it is 64-byte aligned. A device
    // that computes elsewhere or in another type copies a parameter after ParameterFlow has
    // delivered it. It copies a gradient before announcing it.
    absl::Span<float* const> parameters;
    // Whether a parameter's memory begins with 16-bit values in the type that the graph computes
    // with, instead of floats. Such values are not converted. One per parameter; empty: none.
    std::vector<bool> narrow_parameters;
    // Like `parameters`, always floats. Empty for a graph that was not differentiated. Null for a
    // gradient that is computed and announced, but not exported: another rank of a split graph
    // exports the same one.
    absl::Span<float* const> gradients;
    // The elements of each parameter that a split graph has (ParameterSlices()). The pointers above
    // still point to whole parameters: the executor reads and writes its slices of them. Empty: the
    // graph has whole parameters.
    std::vector<ParameterSlice> slices;
    // The tables of each graph input, if rows come by TakeRows() and not through input(). No table:
    // the rows have the type that the graph declares. Otherwise the input is f32, its rows are
    // bytes, and a table says which float each byte stands for. There is one table, or one for each
    // channel (dimension 1). The tables outlive the executor.
    absl::Span<const absl::Span<const kernels::ByteValues>> row_values;
    bool micro_batches = false;  // whether a run may add to the gradients of the run before
    bool tf32 = false;           // f32 matrix products in TF32 if the device supports it
    bool deterministic = true;   // use only kernels that repeat to the bit
    // Null: the executor has no peers. All peers run the same training graph step by step, each on
    // its own thread. Requires: the pointee outlives the executor, and `parameters` and `gradients`
    // above point into its memory.
    const ExecutorPeers* peers = nullptr;
    // The number of devices that compute parts of each batch and normalise them together: nodes
    // with the attribute `synchronised` exchange their sums in the middle of a run. A run fails
    // with the error of RunArguments.communicator.
    int synchronised_devices = 1;
    // Records the time of every node of every run. Outlives the executor.
    Profile* profile = nullptr;
  };

  // Returns the number of elements in a row that have the same table, of the `tables` of an input.
  static int64_t PlaneOf(absl::Span<const int64_t> shape,
                         absl::Span<const kernels::ByteValues> tables) {
    if (tables.size() <= 1) return 1;
    CHECK(shape.size() >= 2 && shape[1] == std::ssize(tables)) << tables.size() << " tables";
    int64_t plane = 1;
    for (const int64_t size : shape.subspan(2)) plane *= size;
    return plane;
  }

  // Returns whether `options` make parameter `p` narrow.
  static bool IsNarrow(const Options& options, int p) {
    return !options.narrow_parameters.empty() && options.narrow_parameters[p];
  }

  // Returns the elements of parameter `p` that the executor has; `elements` is their number.
  static ParameterSlice SliceOf(const Options& options, int p, int64_t elements) {
    if (options.slices.empty()) return {.run_elements = elements};
    CHECK_EQ(options.slices[p].elements(), elements) << "parameter " << p;
    return options.slices[p];
  }

  struct MemoryNeed {
    int64_t arena_bytes = 0;      // activations and temporaries
    int64_t parameter_bytes = 0;  // values and gradients, all copies on the device
  };

  virtual ~Executor() = default;

  // Returns the host memory of a graph input. The caller fills it before Run(); Run() does not
  // change it. Requires: no Options.row_values.
  virtual absl::Span<std::byte> input(absl::string_view name) = 0;

  // Takes the rows of the next run, one span per graph input. Call it between runs, or from
  // ParameterFlow::RowsMayCome(): then a GPU receives the rows while it computes. After a call from
  // RowsMayCome() the caller may reuse the memory when that run has returned, otherwise when the
  // next run has returned. A run without new rows uses those of the run before. Returns errors of
  // the device. Requires: Options.row_values.
  virtual absl::Status TakeRows(absl::Span<const absl::Span<const std::byte>> rows) = 0;

  // Returns a tensor named in Graph.loss, logits or correct as f32 on the host, after Run(). Valid
  // until the next Run(). The first call for an output that is not f32 in host memory already may
  // allocate memory for a copy. Returns errors of Device::Allocate and of the device.
  virtual absl::StatusOr<absl::Span<const float>> output(absl::string_view name) const = 0;

  // Runs all nodes once. When it returns, outputs are available and gradients were announced. If
  // `flow` is null, the run neither waits nor announces.
  //
  // Returns INVALID_ARGUMENT for data outside the model's range (a token id beyond the vocabulary).
  // Returns INTERNAL, reason "DEVICE_LOST", if the GPU failed permanently. The message names the
  // nodes that were running, and every later use of that GPU by the process returns this error.
  virtual absl::Status Run(const RunArguments& arguments, ParameterFlow* flow) = 0;

  virtual int64_t arena_bytes() const = 0;  // activations and temporaries
};

}  // namespace muster
