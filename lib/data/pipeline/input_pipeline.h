// Reads batches before the training steps need them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/data/dataset.h"
#include "lib/data/input_use.h"
#include "lib/data/order/sample_order.h"
#include "lib/data/pipeline/batch_ring.h"
#include "lib/data/pipeline/decode_pool.h"
#include "lib/engine/device.h"
#include "lib/limits/limits.h"
#include "lib/telemetry/trace.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// One worker's share of a batch.
struct InputBatch {
  int64_t step = 0;
  // Indexed by graph input: the share's rows in the order of their positions in the batch, with the
  // values as the dataset reads them (Dataset::row_values).
  absl::Span<const absl::Span<const std::byte>> rows;
  // Indexed by graph input: the number of targets of the global batch that count, or 0 if the input
  // is no target of a loss with an ignore_index. Empty if no loss has an ignore_index.
  absl::Span<const int64_t> counted_targets;
};

// Reads one worker's share of every batch from first_step on, in order, on threads of its own. They
// share a batch in runs of rows, or sample by sample if the dataset is slow. The buffers are
// allocated once. If a loss ignores some targets, the pipeline also counts the targets of the other
// shares.
// Thread-compatible, except Peek().
class InputPipeline {
 public:
  struct Options {
    // Both outlive the pipeline.
    const Dataset* dataset = nullptr;
    const v1::Graph* graph = nullptr;
    Device* device = nullptr;    // allocates host memory for the batches
    SampleOrder order;           // of the dataset's training samples
    int64_t first_position = 0;  // of the share within every batch
    int64_t samples = 0;         // size of the share
    int64_t first_step = 0;
    std::vector<int64_t> left_out = {};         // batches to skip, see BatchOfStep()
    int batches = limits::kPrefetchBatchesMax;  // buffers, including the one in use; >= 2
    int threads = 1;                            // that read; >= 1
    int nice = 0;                               // of these threads, see DecodePool
    // Once true, reading fails with CANCELLED as soon as possible. Outlives the pipeline. Null:
    // never.
    const std::atomic<bool>* cancelled = nullptr;
    Trace* trace = nullptr;  // gets the life of each batch on `track`; outlives the pipeline
    int track = 0;
  };
  // Starts reading. Fails as Device::Allocate does.
  static absl::StatusOr<std::unique_ptr<InputPipeline>> Create(Options options);

  const SampleOrder& order() const { return options_.order; }

  // Returns the next step's batch. It is valid until the next call.
  // Blocks until the batch is read. Returns the error of Dataset::Read() if it failed; then all
  // later calls return it again.
  absl::StatusOr<InputBatch> Next();

  // Returns the batch that the next call of Next() will return, or nothing if it is not read yet,
  // or if reading it failed. The result is valid until Next() was called twice. Any number of
  // threads may call this.
  std::optional<InputBatch> Peek() const;

  // Returns the steady time at which the batch of the last call of Next() was read. It may lie
  // before that call. Requires: the call succeeded.
  absl::Duration read_at() const { return ring_.read_at(); }

  // Returns the cost of reading since Create(), of all that pool() reads. Thread-safe. Does not set
  // `substituted`.
  v1::InputTiming timing() const;

  // Returns the threads that read. They may read other samples too.
  DecodePool& pool() { return pool_; }

 private:
  struct Buffer {
    std::vector<absl::Span<std::byte>> rows;            // by graph input, writable
    std::vector<absl::Span<const std::byte>> contents;  // the same memory, read-only
    std::vector<int64_t> counted_targets;               // while it is read, guarded by mu_
  };

  InputPipeline(Options options, Device::Memory memory);
  std::vector<Buffer> PlaceBuffers() const;

  void TraceEnd(int64_t step);
  int64_t Begin(int64_t step) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ReadPart(int64_t step, int64_t part);
  absl::Status ReadRows(int64_t batch, int64_t first, int64_t count, Buffer& buffer);
  void AskAhead(int64_t batch, int64_t first, int64_t count) const;
  absl::Status CountOthers(int64_t batch, int64_t first, int64_t count, Buffer& buffer);
  void AddTo(Buffer& buffer, absl::Span<const int64_t> counted) ABSL_LOCKS_EXCLUDED(mu_);
  Buffer& BufferOf(int64_t step) { return buffers_[step % buffers_.size()]; }
  InputBatch BatchOf(int64_t step) const;

  const Options options_;
  const std::vector<int64_t> row_bytes_;  // by graph input
  const std::vector<InputUse> uses_;      // by graph input
  const bool counts_;                     // whether some targets may not count
  const int64_t run_;                     // rows of a part
  const int64_t parts_;                   // that read the rows of a batch
  const Device::Memory memory_;           // of the buffers
  std::vector<Buffer> buffers_;           // step s uses buffer s mod size
  mutable absl::Mutex mu_;
  DecodePool pool_;
  BatchRing ring_;  // last, because its parts use all of the above
};

// Returns the number of targets of all held-out samples that count, indexed by graph input. Empty
// if no loss has an ignore_index. Blocks. Fails as Dataset::ReadEvaluation() does.
absl::StatusOr<std::vector<int64_t>> CountEvaluationTargets(const Dataset& dataset,
                                                            const v1::Graph& graph);

}  // namespace muster
