// Training and held-out samples by number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Immutable once opened, shared by threads.
class Dataset {
 public:
  // Opens what `spec` names and checks that it fits the graph's inputs ("input", "target") and that
  // every id is one of the model's (vocabulary, classes): text needs i32[-1, T] twice, idx
  // f32[-1, channels, rows, columns] (or [-1, product]) and i32[-1], linear f32[-1, 1] twice. Fails
  // with a reason (DATA_NOT_FOUND, DATA_TRUNCATED, DATA_INVALID, DATA_TOO_SMALL) and a message that
  // starts with the field path ("data.text.path: /nope: no such file or directory").
  static absl::StatusOr<std::unique_ptr<const Dataset>> Open(const v1::DataSpec& spec,
                                                             const v1::Graph& graph);
  virtual ~Dataset() = default;

  virtual int64_t samples() const = 0;             // training samples of one epoch, >= 1
  virtual int64_t evaluation_samples() const = 0;  // held out; may be 0

  // Copies training samples into row-major batch memory: input and target hold samples.size() rows.
  // `epoch` lets a data set shift its windows (text); the same (epoch, sample) is the same bytes
  // for ever.
  virtual void Read(int64_t epoch, absl::Span<const int64_t> samples, absl::Span<std::byte> input,
                    absl::Span<std::byte> target) const = 0;

  // Held-out samples [first, first + count).
  virtual void ReadEvaluation(int64_t first, int64_t count, absl::Span<std::byte> input,
                              absl::Span<std::byte> target) const = 0;
};

}  // namespace muster
