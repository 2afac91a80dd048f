// Reads held-out samples before an evaluation needs them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/data/dataset.h"
#include "lib/data/pipeline/batch_ring.h"
#include "lib/data/pipeline/decode_pool.h"

namespace muster {

// One pass over held-out samples, in batches. Thread-compatible.
class EvaluationStream {
 public:
  static constexpr int kBatches = 3;  // in memory: one is used, one is ready, one is being read

  struct Options {
    const Dataset* dataset = nullptr;  // outlives the stream, as do the next three
    DecodePool* pool = nullptr;        // reads the samples
    const std::atomic<bool>* cancelled = nullptr;
    std::byte* memory = nullptr;     // kBatches times BytesOfRows(at_once, row_bytes)
    std::vector<int64_t> row_bytes;  // by graph input
    int64_t first = 0;               // the samples [first, first + count)
    int64_t count = 0;
    int64_t at_once = 0;  // samples of a batch, except the last one
  };
  // Starts reading.
  explicit EvaluationStream(Options options);

  // Returns the rows of the next batch by graph input, valid until the next call. Blocks. Returns
  // CANCELLED soon after `cancelled` is true. Fails as Dataset::ReadEvaluation() does. Requires:
  // there is a next batch.
  absl::StatusOr<absl::Span<const absl::Span<const std::byte>>> Next();

 private:
  struct Buffer {
    std::vector<absl::Span<std::byte>> rows;
    std::vector<absl::Span<const std::byte>> contents;  // the same memory, read-only
  };

  int64_t Begin(int64_t batch);
  absl::Status ReadPart(int64_t batch, int64_t part);
  int64_t SamplesOf(int64_t batch) const;

  const Options options_;
  const int64_t run_;  // rows of a part
  std::vector<Buffer> buffers_;
  BatchRing ring_;  // last, because its parts use all of the above
};

}  // namespace muster
