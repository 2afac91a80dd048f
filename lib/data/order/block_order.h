// A shuffle for slow disks: reads neighbouring samples together.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "lib/data/order/sample_ref.h"

namespace muster {

// An epoch puts the blocks in random order: block b has samples [b * K, (b + 1) * K), and the last
// one may have fewer. Each lane gets a run of this sequence. A lane permutes its samples within
// windows of neighbouring blocks of the sequence. It finishes a window before it begins the next
// one, so it reads the blocks of a window at about the same time.
//
// A batch of B positions has C lanes. Positions [l * B / C, (l + 1) * B / C) belong to lane l. A
// worker reads the blocks of the lanes of its share, so workers read different blocks if their
// shares begin and end at lanes. If a share cuts a lane, both workers read the lane's blocks.
// Each epoch permutes the blocks differently, so a lane gets other blocks.
//
// Pure and immutable. A sample takes O(1) time, and no memory.
class BlockOrder {
 public:
  struct Options {
    uint64_t seed = 0;
    int64_t samples = 0;        // >= 1
    int64_t epoch_samples = 0;  // that an epoch uses; at most `samples`
    int64_t batch_size = 0;
    int64_t block_samples = 0;  // K, >= 1
    int64_t window_blocks = 0;  // of all lanes together, >= 1. A lane has at least one
    int64_t lanes = 0;          // C, divides batch_size
  };
  explicit BlockOrder(const Options& options);

  // Fills `to` with the samples at positions `first`, `first` + 1, ... of the job. A position of
  // the job is step * batch_size + position in the batch.
  void Fill(int64_t first, absl::Span<SampleRef> to) const;

  // Returns how many steps the windows of all lanes take, rounded up.
  int64_t window_steps() const;

 private:
  // Neighbouring positions of one lane in one window.
  struct Run;

  // The blocks of an epoch in random order.
  struct Sequence {
    int64_t epoch = 0;
    int64_t short_at = 0;  // the place of the block that is not full, if there is one
  };

  Run RunAt(int64_t position) const;
  int64_t CountBefore(int64_t position, int64_t lane) const;
  int64_t CountInLanesBefore(int64_t position, int64_t lane) const;
  Sequence SequenceOf(int64_t epoch) const;
  int64_t FullBlocksBefore(const Sequence& sequence, int64_t place) const;
  int64_t StartOf(const Sequence& sequence, int64_t place) const;
  int64_t PlaceOf(const Sequence& sequence, int64_t at) const;

  const uint64_t seed_;
  const int64_t samples_;
  const int64_t epoch_samples_;
  const int64_t batch_size_;
  const int64_t block_samples_;
  const int64_t full_blocks_;
  const int64_t short_samples_;  // of the last block; 0: all blocks are full
  const int64_t window_blocks_;  // of one lane
  const int64_t lane_width_;     // positions of a batch in one lane
};

}  // namespace muster
