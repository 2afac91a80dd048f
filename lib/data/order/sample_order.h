// Defines the order of samples. It is a pure function, so any worker can compute any share of any
// step.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/data/order/block_order.h"
#include "lib/data/order/mixture.h"
#include "lib/data/order/sample_ref.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// A permutation of [0, n) keyed by (seed, epoch): the order of a full shuffle. See Permuted().
int64_t PermutedSample(uint64_t seed, int64_t epoch, int64_t n, int64_t i);

// Returns `samples` of one epoch.
std::vector<SampleRef> SamplesOf(int64_t epoch, absl::Span<const int64_t> samples);

// The order of a job's training samples. Position P = step * batch_size + i is the i-th sample of a
// step's batch. An epoch takes E positions, one after the other:
// - last_batch drop: E is the largest multiple of batch_size up to the number of samples. The epoch
//   omits the others: other ones in each epoch, except with `shuffle: none`.
// - last_batch continue: E is the number of samples, so a batch may span epochs.
// An epoch has no sample twice.
//
// A mixture numbers the samples of its parts one after the other. Mixture says which part gives the
// sample of a position, and each part continues with epochs of its own: SampleRef::epoch is the
// epoch of the part. The mixture itself has no end, so last_batch changes only the number of steps.
// `training.epochs` of a mixture are those of as many samples as all parts have together, so a part
// with a small weight may not come to its end.
//
// Pure and immutable; copies are cheap; threads may share it.
class SampleOrder {
 public:
  // Reads the numbers of samples, of all data, of a block and of the parts, from `facts`. Returns
  // INVALID_ARGUMENT, with the field at fault, if `data` does not fit them.
  static absl::StatusOr<SampleOrder> Create(const v1::DataSpec& data,
                                            const v1::DatasetFacts& facts);
  // The default: a full shuffle that drops the incomplete last batch. Requires: samples >=
  // batch_size >= 1.
  static SampleOrder Full(uint64_t seed, int64_t samples, int64_t batch_size);

  int64_t batch_size() const { return batch_size_; }

  // Returns how many steps a window of a block shuffle takes. 0: the order has no windows.
  int64_t window_steps() const;

  // Returns the samples at positions [first_position, first_position + count) of the batch of step
  // `step`.
  std::vector<SampleRef> SamplesOfStep(int64_t step, int64_t first_position, int64_t count) const;

 private:
  // Each has a function Fill(first, to), as BlockOrder does.
  struct FullShuffle {
    void Fill(int64_t first, absl::Span<SampleRef> to) const;
    uint64_t seed;
    int64_t samples, epoch_samples;
  };
  struct FileOrder {
    void Fill(int64_t first, absl::Span<SampleRef> to) const;
    int64_t epoch_samples;
  };
  struct MixtureOrder {
    struct Part {
      uint64_t seed;
      int64_t first_sample, samples;
    };
    void Fill(int64_t first, absl::Span<SampleRef> to) const;
    Mixture mixture;
    std::vector<Part> parts;
    bool is_shuffled;
  };
  using Kind = std::variant<FullShuffle, FileOrder, BlockOrder, MixtureOrder>;

  SampleOrder(int64_t batch_size, Kind kind);
  static absl::StatusOr<MixtureOrder> MixtureOrderOf(const v1::DataSpec& data,
                                                     const v1::DatasetFacts& facts);

  int64_t batch_size_;
  Kind kind_;
};

}  // namespace muster
