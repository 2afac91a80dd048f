// Training and held-out samples by number.
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

// Bytes of one sample of a graph input, f32 or i32, as the graph declares it.
int64_t RowBytes(const v1::GraphInput& input);

// A sample is one row of every graph input. Immutable once opened, shared by threads.
class Dataset {
 public:
  // Opens what `spec` names and checks that it fits the graph's inputs and that every id is one of
  // the model's (see InputUse). Text needs "input" and "target" i32[-1, T], idx "input"
  // f32[-1, channels, rows, columns] (or [-1, product]) and "target" i32[-1], linear f32[-1, 1]
  // twice, and no further input; npy and synthetic fill whatever there is. Fails with a reason
  // (DATA_NOT_FOUND, DATA_TRUNCATED, DATA_INVALID, DATA_TOO_SMALL) and names the field at fault,
  // in the message ("data.text.path: /nope: no such file or directory") and for FaultsOf().
  // RESOURCE_EXHAUSTED, likewise: what it would have to hold is more than `held_bytes_max`;
  // of npy files the ids count, which it looks at.
  static absl::StatusOr<std::unique_ptr<const Dataset>> Open(
      const v1::DataSpec& spec, const v1::Graph& graph,
      int64_t held_bytes_max = std::numeric_limits<int64_t>::max());
  virtual ~Dataset() = default;

  virtual int64_t samples() const = 0;             // training samples of one epoch, >= 1
  virtual int64_t evaluation_samples() const = 0;  // held out; may be 0

  // What has a byte an element where it is stored, as pixels have, is read as bytes: what each byte
  // of `input`'s rows stands for, for as long as the dataset lives. Null: rows are as the graph
  // declares them. `input` numbers the graph's inputs.
  virtual const kernels::ByteValues* row_values(int /*input*/) const { return nullptr; }

  // Memory for samples, by graph input: as many rows as there are samples, one after the other. An
  // empty one is not filled.
  using Rows = absl::Span<const absl::Span<std::byte>>;

  // Copies training samples. `epoch` lets a data set shift its windows (text); the same (epoch,
  // sample) is the same bytes for ever.
  virtual void Read(int64_t epoch, absl::Span<const int64_t> samples, Rows rows) const = 0;

  // Held-out samples [first, first + count).
  virtual void ReadEvaluation(int64_t first, int64_t count, Rows rows) const = 0;
};

// Bytes of one sample of each graph input, as the dataset reads it.
std::vector<int64_t> RowBytes(const Dataset& dataset, const v1::Graph& graph);

}  // namespace muster
