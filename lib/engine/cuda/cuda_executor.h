// Runs a graph on a GPU.
//
// The streams, tied by events:
// - Nodes run in the compute stream.
// - Parameters come in through the upload stream.
// - Gradients leave through the download stream.
// - The next run's rows come through the rows stream into separate memory. The next run begins by
//   moving them to the memory that its nodes read. It waits for them only if they were given late.
//
// The nodes are cut into segments. A segment waits for its parameters, then its nodes are launched
// as one CUDA graph. Then its final gradients start their way out while the next segment computes.
// With peers (ExecutorPeers) parameters and gradients travel by buckets, and the GPUs share the
// work. A node that meets other GPUs itself (a synchronised norm, a sum or loss of a split graph)
// is a segment of its own, and its kernels and collective operation are enqueued one by one. A sum
// that the next node does not need runs in the collective stream, beside the next segments.
//
// A run allocates nothing. It waits only for parameters, and at its end for gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/byte_values.h"
#include "kernels/cuda/type.h"
#include "lib/engine/compiled_graph.h"
#include "lib/engine/cuda/cuda_buckets.h"
#include "lib/engine/cuda/cuda_device.h"
#include "lib/engine/cuda/cuda_handles.h"
#include "lib/engine/cuda/cuda_kernels.h"
#include "lib/engine/executor.h"

namespace muster {

class CudaExecutor : public Executor {
 public:
  static absl::StatusOr<std::unique_ptr<CudaExecutor>> Create(const v1::Graph& graph,
                                                              const Options& options);
  ~CudaExecutor() override;

  absl::Span<std::byte> input(absl::string_view name) override;
  absl::Status TakeRows(absl::Span<const absl::Span<const std::byte>> rows) override;
  absl::StatusOr<absl::Span<const float>> output(absl::string_view name) const override;
  absl::Status Run(const RunArguments& arguments, ParameterFlow* flow) override;
  int64_t arena_bytes() const override { return arena_bytes_; }

 private:
  struct Parameter {
    const float* host = nullptr;          // the whole
    ParameterSlice slice;                 // what the graph has of it
    bool is_narrow = false;               // see Options::narrow_parameters
    std::shared_ptr<std::byte[]> device;  // in the graph's compute type
    cuda::Type type = cuda::Type::kF32;
    int64_t elements = 0;  // of the slice
  };

  struct Gradient {
    float* host = nullptr;              // the whole; null: another rank exports it
    std::shared_ptr<std::byte[]> sum;   // f32 sum over micro-batches, of the slice; null: no `host`
    const std::byte* device = nullptr;  // address in the arena
  };

  struct Input {
    std::string name;
    std::byte* device = nullptr;  // the address that nodes read
    int64_t elements = 0;
    int64_t bytes = 0;  // bytes at `device`
    Device::Memory host =
        Device::Memory(nullptr, nullptr);  // the memory of input(); null if rows are taken
    CudaMemory rows;                       // rows taken by TakeRows(), undecoded
    int64_t row_bytes = 0;                 // bytes of `rows`
    CudaMemory tables;     // f32[channels, 256], the values of bytes; null: rows need no decoding
    int64_t channels = 1;  // that have a table
    int64_t plane = 1;     // elements with the same table
  };

  // An output of the graph. Every run copies scalars to the host. Other outputs are copied at the
  // first request.
  struct Output {
    const std::byte* device = nullptr;
    v1::DType dtype = v1::DTYPE_F32;
    int64_t elements = 0;
    int64_t columns = 0;  // columns of a row; all elements if there are no gaps
    int64_t row = 0;      // elements between the starts of two rows
    float scalar = 0;
    Device::Memory values = Device::Memory(nullptr, nullptr);
    bool is_fetched = false;

    bool is_scalar() const { return elements == 1 && dtype == v1::DTYPE_F32; }
  };

  struct Step {
    std::string name;  // "'h0/qkv' (Linear)"
    NodeRun run;
    std::vector<int> ready;  // gradients to export before another step reuses their memory
    int profile_entry = -1;
  };

  // Steps [first, last).
  struct Segment {
    int first = 0;
    int last = 0;
    std::vector<int> awaits;     // parameters
    std::vector<int> ready;      // gradients
    std::vector<int> full;       // with peers: buckets that this segment's gradients complete
    bool is_collective = false;  // its only node meets other GPUs, so it is not in a CUDA graph
    CudaGraph graph;             // null: kernels are launched one by one
    int awaits_segment = -1;     // a segment in the collective stream, see Step::awaits_step
    CudaEvent arrived;           // its parameters have arrived, in the upload stream
    // Its nodes are done, in the compute stream. If it is in the collective stream: the nodes
    // before it are done.
    CudaEvent computed;
    CudaEvent delivered;  // its gradients are on the host, in the download stream
    CudaEvent ended;      // in the collective stream; null: the segment is in the compute stream
  };

  // The values that the device reads before each run, in one block of memory.
  struct Scalars {
    cuda::RunNumbers numbers;
    cuda::OutOfRange out_of_range;
    // Followed by int64_t counted_targets[graph inputs].
  };

  CudaExecutor(const Options& options, CudaDevice& device)
      : device_(device),
        samples_(options.batch),
        micro_batches_(options.micro_batches),
        takes_rows_(!options.row_values.empty()),
        profile_(options.profile),
        launches_wait_(profile_ != nullptr || CudaLaunchesWait()) {}

  absl::Status Build(const v1::Graph& graph, const Options& options);
  absl::Status PlaceScalars(const v1::Graph& graph);
  absl::Status PlaceParameters(const CompiledGraph& compiled, const Options& options);
  absl::Status JoinPeers(const CompiledGraph& compiled, const ExecutorPeers& peers);
  absl::Status PlaceInputs(const CompiledGraph& compiled, const CompiledGraph::Memory& memory,
                           const Options& options);
  absl::Status PlaceRows(Input& input, absl::Span<const kernels::ByteValues> tables);
  void PlaceOutputs(const CompiledGraph& compiled, const CompiledGraph::Memory& memory);
  absl::Status FillConstants(const CompiledGraph& compiled, const CompiledGraph::Memory& memory);
  absl::Status CutSegments(const CompiledGraph& compiled);
  absl::Status WarmUp();
  absl::Status Capture(Segment& segment);

  absl::Status Compute(const RunArguments& arguments, ParameterFlow* flow);
  absl::Status Enqueue(const RunArguments& arguments, ParameterFlow* flow);
  absl::Status SendScalars(const RunArguments& arguments, cuda::Export gradients);
  absl::Status SendRows(absl::Span<const absl::Span<const std::byte>> rows);
  absl::Status BringInputs();
  absl::Status BringParameters(const Segment& segment, bool is_first, ParameterFlow* flow);
  absl::Status GatherBucket(int bucket, ParameterFlow* flow);
  absl::Status GatherRest(ParameterFlow* flow);
  absl::Status Upload(int p, const ParameterSlice& values, int64_t to);
  absl::Status LaunchSegment(const Segment& segment);
  absl::Status LaunchBeside(const Segment& segment);
  absl::Status LaunchSteps(const Segment& segment);
  absl::Status ExportGradients(const Step& step);
  absl::Status Download(const Segment& segment);
  absl::Status DownloadGradient(int p);
  absl::Status Announce(const RunArguments& arguments, ParameterFlow* flow);
  absl::Status CheckRange() const;
  absl::Status Fetch(absl::string_view name, Output& output) const;
  // Returns this GPU's rank among those for which its streams may wait. Null: there are no others.
  Communicator* others() const {
    return buckets_ != nullptr ? buckets_->communicator() : tensor_parallel_;
  }
  // Block until the GPU has finished its nodes, or a segment's gradients are on the host. They
  // return an error if another rank fails.
  absl::Status AwaitNodes();
  absl::Status AwaitGradients(const Segment& segment);
  absl::Status GiveUp(absl::Status why);
  std::string FaultedNodes() const;
  volatile int64_t& finished_segments() const {
    return *reinterpret_cast<int64_t*>(host_progress_.get());
  }
  absl::Status DrainStreams(absl::FunctionRef<void()> abandon);

  CudaDevice& device_;
  const int64_t samples_;
  const bool micro_batches_;
  const bool takes_rows_;
  Profile* const profile_;
  // Whether each launch finishes before the next one, so that an error belongs to the launched
  // node.
  const bool launches_wait_;
  CudaContext context_;
  int64_t arena_bytes_ = 0;
  CudaMemory arena_;
  CudaMemory staging_;  // f32 values before their conversion to another type
  CudaMemory scalars_;
  int64_t scalar_bytes_ = 0;
  Device::Memory host_scalars_ = Device::Memory(nullptr, nullptr);
  Device::Memory host_results_ = Device::Memory(nullptr, nullptr);   // out_of_range, then scalars
  Device::Memory host_progress_ = Device::Memory(nullptr, nullptr);  // int64_t, written by the GPU
  std::unique_ptr<CudaBuckets> buckets_;  // null unless the executor trains with peers
  std::vector<bool> gathered_;            // one per bucket: gathered in this run
  std::vector<Parameter> parameters_;
  std::vector<Gradient> gradients_;
  std::vector<Input> inputs_;  // one per graph input
  CudaEvent rows_arrived_;     // in the rows stream: the last rows taken have arrived
  CudaEvent rows_moved_;  // in the compute stream: the rows were moved, so their memory is free
  mutable absl::flat_hash_map<std::string, Output> outputs_;
  std::vector<Step> steps_;
  std::vector<Segment> segments_;
  // Of the run, see RunArguments. Null: none runs.
  Communicator* communicator_ = nullptr;
  Communicator* tensor_parallel_ = nullptr;
  int launching_ = -1;  // the step being launched; -1: none
};

}  // namespace muster
