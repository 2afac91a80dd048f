// Reads batches ahead of the training step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "lib/cluster/limits.h"
#include "lib/data/dataset.h"

namespace muster {

// One worker's share of every batch from first_step on, in order, read by its own thread into
// buffers allocated once. Thread-compatible.
class InputPipeline {
 public:
  struct Options {
    const Dataset* dataset = nullptr;  // outlives the pipeline; at least batch_size samples
    uint64_t seed = 0;                 // of the order of samples
    int64_t batch_size = 0;            // global
    int64_t first_position = 0;        // of the share in every batch
    int64_t samples = 0;               // of the share
    int64_t first_step = 0;
    int64_t input_bytes = 0;  // of one sample
    int64_t target_bytes = 0;
    int batches = limits::kPrefetchBatchesMax;  // held, the one in use included; >= 2
  };
  explicit InputPipeline(Options options);  // starts reading
  ~InputPipeline();

  struct Batch {
    int64_t step = 0;
    absl::Span<const std::byte> input;  // `samples` rows, in the order of their positions
    absl::Span<const std::byte> target;
  };
  // The next step's batch; waits until it is read. Valid until the next call.
  Batch Next() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Buffer {
    std::vector<std::byte> input;
    std::vector<std::byte> target;
  };

  void Read() ABSL_LOCKS_EXCLUDED(mu_);
  Buffer& BufferOf(int64_t step) { return buffers_[step % buffers_.size()]; }

  const Options options_;
  std::vector<Buffer> buffers_;  // step s uses buffer s mod size
  absl::Mutex mu_;
  int64_t read_before_
      ABSL_GUARDED_BY(mu_);  // batches of steps before this one are in their buffers
  int64_t used_before_ ABSL_GUARDED_BY(mu_);  // buffers of steps before this one are free
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  int64_t next_step_;
  std::jthread reader_;  // last: it uses all of the above
};

}  // namespace muster
