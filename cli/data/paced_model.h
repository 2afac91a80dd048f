// A model that takes a fixed time to compute each batch, for `muster bench data`.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace muster::cli {

// Follows what such a model does from the times at which its batches were read. All times are
// SteadyNow()'s. The thread that plays the model may wake up late: that neither counts as waiting
// nor delays the model. This holds while batches are left that were read ahead. A later wake-up has
// stopped the reading, because no buffer was free, and counts as waiting.
// A pure computation; thread-compatible.
class PacedModel {
 public:
  // The model asks for its first batch at `begin`, and computes each one for `step`.
  PacedModel(absl::Duration step, absl::Duration begin)
      : step_(step), begin_(begin), ready_(begin) {}

  // Returns when the model asks for the next batch.
  absl::Duration ready() const { return ready_; }

  // Gives the model its next batch, which was read at `read_at`. The model waits for it if that is
  // after ready().
  void Take(absl::Duration read_at);

  int64_t batches() const { return batches_; }  // that were taken
  // The time in which the model took and computed them.
  absl::Duration elapsed() const { return ready_ - begin_; }
  // The share of elapsed() in which the model waited, or 0 before the first batch.
  double wait_share() const;

 private:
  const absl::Duration step_, begin_;
  absl::Duration ready_;
  absl::Duration waited_;
  int64_t batches_ = 0;
};

}  // namespace muster::cli
