// Provides training and held-out samples by number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/byte_values.h"
#include "lib/data/input_use.h"
#include "lib/data/order/sample_order.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Returns the bytes of one sample of a graph input, f32 or i32, as the graph declares it.
int64_t RowBytes(const v1::GraphInput& input);

// A sample is one row of every graph input. Immutable once opened; threads may share it.
// OpenDataset() makes one from a job's `data:` (source/open_dataset.h).
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t samples() const = 0;             // training samples per epoch, >= 1
  virtual int64_t evaluation_samples() const = 0;  // held out; may be 0

  // Equal for equal data on any machine, of printable characters. "": the source has none.
  virtual std::string fingerprint() const { return ""; }

  // The training samples of each part of a mixture, in the order of their numbers. Empty: there is
  // one source.
  virtual std::vector<int64_t> part_samples() const { return {}; }

  // The bytes of a training sample in its files, on average. 0: as many as its rows have.
  virtual int64_t mean_stored_bytes() const { return 0; }

  // Returns whether reading a sample takes much longer than copying it, as decoding an image does.
  // Then threads share a batch sample by sample.
  virtual bool is_slow() const { return false; }

  // Returns the value of each byte in the rows of graph input `input`, if they are stored and read
  // as one byte per element, as pixels are. Valid as long as the dataset exists. There is one table
  // for all elements, or one for each channel (dimension 1). Empty if rows are as the graph
  // declares them.
  virtual absl::Span<const kernels::ByteValues> row_values(int /*input*/) const { return {}; }

  // Memory for samples, by graph input: one row per sample, contiguous. An empty span is not
  // filled.
  using Rows = absl::Span<const absl::Span<std::byte>>;

  // Copies training samples. The same sample of the same epoch always gives the same bytes. Blocks.
  // A record with damaged bytes gives DATA_DAMAGED. Any other error concerns the storage. The rows
  // are undefined after an error.
  virtual absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const = 0;

  // Copies samples of a worker's share of batch number `batch`, as Read() does. A worker reads its
  // share of each batch once, about in order. So this may read neighbours of the samples from the
  // files, and keep them for later batches.
  virtual absl::Status ReadInOrder(int64_t /*batch*/, absl::Span<const SampleRef> samples,
                                   Rows rows) const {
    return Read(samples, rows);
  }

  // Asks the storage to begin with these samples: ReadInOrder() will read them for batch number
  // `batch`. Does not block.
  virtual void WillRead(int64_t /*batch*/, absl::Span<const SampleRef> /*samples*/) const {}

  // Returns how many damaged training samples were replaced by others so far.
  virtual int64_t substituted() const { return 0; }

  // Copies held-out samples [first, first + count). Fails as Read() does.
  virtual absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const = 0;

  // The target of a loss that ignores some targets.
  struct Target {
    const v1::Graph* graph = nullptr;  // the one with which the data were opened
    int input = 0;                     // of the graph, i32
    InputUse use;                      // has an ignore_index
  };

  // Returns how many targets of these training samples count. The default reads their rows, of this
  // input only; data with an index need not. Blocks. Fails as Read() does.
  virtual absl::StatusOr<int64_t> CountTargets(const Target& target,
                                               absl::Span<const SampleRef> samples) const;
  // Returns how many targets of the held-out samples [first, first + count) count, likewise.
  virtual absl::StatusOr<int64_t> CountEvaluationTargets(const Target& target, int64_t first,
                                                         int64_t count) const;
};

// Returns the bytes of one sample of each graph input, as the dataset reads it.
std::vector<int64_t> RowBytes(const Dataset& dataset, const v1::Graph& graph);

// Returns how many samples of `stored_bytes` each make a block of a block shuffle, out of
// `samples`: as many as the job says, otherwise as many as take 8 MiB.
int64_t BlockSamples(const v1::DataSpec& data, int64_t stored_bytes, int64_t samples);

// Returns what the order of samples depends on, and what must be equal on all workers. The
// fingerprint of data with images ends with the version of their pixels (kImageRowsVersion).
v1::DatasetFacts FactsOf(const Dataset& dataset, const v1::DataSpec& data, const v1::Graph& graph);

}  // namespace muster
