// Provides training and held-out samples by number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/byte_values.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Returns the bytes of one sample of a graph input, f32 or i32, as the graph declares it.
int64_t RowBytes(const v1::GraphInput& input);

// A sample is one row of every graph input. Immutable once opened; threads may share it.
class Dataset {
 public:
  // Opens the data named by `spec`. Checks that it fits the graph's inputs, and that every id is in
  // the model's range (see InputUse). The kinds fill these inputs, and allow no others:
  // - text: "input" and "target" i32[-1, T].
  // - idx: "input" f32[-1, channels, rows, columns] (or [-1, product]) and "target" i32[-1].
  // - linear: "input" and "target" f32[-1, 1].
  // - npy and synthetic: any inputs.
  //
  // An error names the field at fault in its message ("data.text.path: /nope: no such file or
  // directory on node-3") and for FaultsOf(). It has the reason DATA_NOT_FOUND, DATA_TRUNCATED,
  // DATA_INVALID or DATA_TOO_SMALL. Returns RESOURCE_EXHAUSTED if the data would need more than
  // `held_bytes_max` of memory. Files of `npy` are not held in memory, but the files of ids count,
  // because Open() reads all of them.
  static absl::StatusOr<std::unique_ptr<const Dataset>> Open(
      const v1::DataSpec& spec, const v1::Graph& graph,
      int64_t held_bytes_max = std::numeric_limits<int64_t>::max());
  virtual ~Dataset() = default;

  virtual int64_t samples() const = 0;             // training samples per epoch, >= 1
  virtual int64_t evaluation_samples() const = 0;  // held out; may be 0

  // Returns the value of each byte in the rows of graph input `input`, if they are stored and read
  // as one byte per element, as pixels are. Valid as long as the dataset exists. Returns null if
  // rows are as the graph declares them.
  virtual const kernels::ByteValues* row_values(int /*input*/) const { return nullptr; }

  // Memory for samples, by graph input: one row per sample, contiguous. An empty span is not
  // filled.
  using Rows = absl::Span<const absl::Span<std::byte>>;

  // Copies training samples. `epoch` lets a data set shift its windows (text). The same (epoch,
  // sample) always gives the same bytes.
  virtual void Read(int64_t epoch, absl::Span<const int64_t> samples, Rows rows) const = 0;

  // Copies held-out samples [first, first + count).
  virtual void ReadEvaluation(int64_t first, int64_t count, Rows rows) const = 0;
};

// Returns the bytes of one sample of each graph input, as the dataset reads it.
std::vector<int64_t> RowBytes(const Dataset& dataset, const v1::Graph& graph);

}  // namespace muster
