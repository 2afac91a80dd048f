// Reads batches ahead of the training step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "lib/data/dataset.h"
#include "lib/data/input_use.h"
#include "lib/data/sample_order.h"
#include "lib/engine/device.h"
#include "lib/limits/limits.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// One worker's share of a batch.
struct InputBatch {
  int64_t step = 0;
  // By graph input: the share's rows in the order of their positions, as the dataset reads them
  // (Dataset::row_values).
  absl::Span<const absl::Span<const std::byte>> rows;
  // By graph input: how many targets of the global batch count, where a loss has an ignore_index;
  // else 0. Empty where no loss has one.
  absl::Span<const int64_t> counted_targets;
};

// Rows of some samples, one graph input's behind the other's, each from a multiple of 64 bytes on:
// how many bytes they take, and where they are in memory of as many. `row_bytes` by graph input.
int64_t BytesOfRows(int64_t samples, absl::Span<const int64_t> row_bytes);
std::vector<absl::Span<std::byte>> PlaceRows(std::byte* memory, int64_t samples,
                                             absl::Span<const int64_t> row_bytes);

// One worker's share of every batch from first_step on, in order, read by its own thread into
// buffers allocated once; large batches by several, each a part. Of targets that may not count, it
// reads those of the whole batch.
// Thread-compatible.
class InputPipeline {
 public:
  struct Options {
    const Dataset* dataset = nullptr;  // these two outlive the pipeline; >= batch_size samples
    const v1::Graph* graph = nullptr;
    Device* device = nullptr;    // in whose host memory the batches lie
    uint64_t seed = 0;           // of the order of samples
    int64_t batch_size = 0;      // global
    int64_t first_position = 0;  // of the share in every batch
    int64_t samples = 0;         // of the share
    int64_t first_step = 0;
    std::vector<int64_t> left_out = {};         // batches that no step uses, see BatchOfStep()
    int batches = limits::kPrefetchBatchesMax;  // held, the one in use included; >= 2
    int threads = 1;                            // that read a large batch; >= 1
  };
  // Starts reading. Errors are those of Device::Allocate.
  static absl::StatusOr<std::unique_ptr<InputPipeline>> Create(Options options);
  ~InputPipeline();

  // The next step's batch; waits until it is read. Valid until the next call.
  InputBatch Next() ABSL_LOCKS_EXCLUDED(mu_);

  // The one after it, if it has been read by now. Valid until Next() was called twice. By any
  // number of threads.
  std::optional<InputBatch> Peek() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Buffer {
    std::vector<absl::Span<std::byte>> rows;            // by graph input, to be filled
    std::vector<absl::Span<const std::byte>> contents;  // likewise, to be read
    std::vector<int64_t> counted_targets;
  };

  InputPipeline(Options options, Device::Memory memory);
  void Place(absl::Span<const int64_t> row_bytes, absl::Span<const int64_t> target_bytes,
             Device::Memory whole_memory);

  void Read() ABSL_LOCKS_EXCLUDED(mu_);
  void ReadBatch(int64_t batch, Buffer& buffer);
  void ReadPart(const BatchShare& share, int64_t first, int64_t count, const Buffer& buffer) const;
  void CountTargetsOf(int64_t batch, Buffer& buffer);
  size_t BufferOf(int64_t step) const { return step % buffers_.size(); }
  InputBatch BatchOf(int64_t step) const;

  const Options options_;
  const std::vector<int64_t> row_bytes_;                            // by graph input
  const std::vector<InputUse> uses_;                                // likewise
  const Device::Memory memory_;                                     // of the buffers
  std::vector<Buffer> buffers_;                                     // step s uses buffer s mod size
  Device::Memory whole_memory_ = Device::Memory(nullptr, nullptr);  // of whole_targets_
  Buffer whole_targets_;  // of the whole batch: targets that may not count; the reader's
  mutable absl::Mutex mu_;
  int64_t read_before_
      ABSL_GUARDED_BY(mu_);  // batches of steps before this one are in their buffers
  int64_t used_before_ ABSL_GUARDED_BY(mu_);  // buffers of steps before this one are free
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  int64_t next_step_ ABSL_GUARDED_BY(mu_);
  std::jthread reader_;  // last: it uses all of the above
};

// By graph input: how many targets of all held-out samples count; empty as in InputBatch.
std::vector<int64_t> CountEvaluationTargets(const Dataset& dataset, const v1::Graph& graph);

}  // namespace muster
