// Estimates the offset of another process's clock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>

namespace muster {

// Uses exchanges of a question and an answer. The other process answered at some time between the
// question and the arrival of the answer. So the midpoint is wrong by at most half of the travel
// time, however that is divided. Times are in nanoseconds. Thread-compatible.
class ClockOffset {
 public:
  struct Exchange {
    int64_t sent = 0;      // by our clock
    int64_t heard = 0;     // by the other clock
    int64_t told = 0;      // by the other clock
    int64_t received = 0;  // by our clock
  };
  // Adds an exchange, or drops it if its times are impossible.
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

  // `offset` is our clock minus the other one; `uncertainty` is its greatest error.
  struct Estimate {
    int64_t offset = 0;
    int64_t uncertainty = 0;
  };
  // Returns the estimate with the smallest uncertainty; nullopt if there was no exchange.
  const std::optional<Estimate>& best() const { return best_; }

 private:
  std::optional<Estimate> best_;
};

// Combines estimates from the begin and the end of a period into one for the whole period. Its
// uncertainty includes the drift of the clocks. Returns the only one if the other is missing.
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
