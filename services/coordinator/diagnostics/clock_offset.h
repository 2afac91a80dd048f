// How far another process's clock is from ours.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>

namespace muster {

// From questions that were answered: the answer was given somewhere between the question and its
// arrival, so that the midpoint is off by half of the way at most, however the way is divided.
// Times are nanoseconds. Thread-compatible.
class ClockOffset {
 public:
  struct Exchange {
    int64_t sent = 0;      // by our clock
    int64_t heard = 0;     // by theirs
    int64_t told = 0;      // by theirs
    int64_t received = 0;  // by ours
  };
  // An impossible one is dropped.
  void Add(const Exchange& exchange) {
    const int64_t there = exchange.told - exchange.heard;
    const int64_t way = exchange.received - exchange.sent - there;
    if (there < 0 || way < 0) return;
    const Estimate estimate{
        .offset = exchange.sent + (way / 2) - exchange.heard,
        .uncertainty = way - (way / 2),
    };
    if (!best_ || estimate.uncertainty < best_->uncertainty) best_ = estimate;
  }

  // Ours less theirs, and how wrong that may be.
  struct Estimate {
    int64_t offset = 0;
    int64_t uncertainty = 0;
  };
  // Nothing: there was no exchange.
  const std::optional<Estimate>& best() const { return best_; }

 private:
  std::optional<Estimate> best_;
};

// Good from one time to a later one, of which these are the estimates; clocks drift apart in
// between. Nothing where there is neither.
inline std::optional<ClockOffset::Estimate> OffsetOver(
    const std::optional<ClockOffset::Estimate>& first,
    const std::optional<ClockOffset::Estimate>& last) {
  if (!first || !last) return first ? first : last;
  const ClockOffset::Estimate& best = last->uncertainty < first->uncertainty ? *last : *first;
  const auto wrong_at = [&best](const ClockOffset::Estimate& estimate) {
    return std::abs(best.offset - estimate.offset) + estimate.uncertainty;
  };
  return ClockOffset::Estimate{.offset = best.offset,
                               .uncertainty = std::max(wrong_at(*first), wrong_at(*last))};
}

}  // namespace muster
