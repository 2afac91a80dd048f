// What waits to be sent over one link: the most urgent first, under a credit of bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "lib/plan/numbers.h"

namespace muster {

// Bytes count from Take() to Sent(). A chunk larger than the credit goes alone. Thread-compatible.
//   Source: Peng et al., "A generic communication scheduler for distributed DNN training
//   acceleration", SOSP 2019 (ByteScheduler: priority and credit).
class SendQueue {
 public:
  struct Entry {
    int64_t urgency = 0;  // the lowest goes first; no two are equal
    ChunkId chunk{};
    int64_t bytes = 0;
  };

  // `chunks`: that will ever wait at the same time; nothing is allocated after.
  SendQueue(int64_t credit_bytes, int chunks) : credit_bytes_(credit_bytes) {
    heap_.reserve(chunks);
  }

  // From here on nothing waits for credit.
  void Unlimit() { credit_bytes_ = std::numeric_limits<int64_t>::max(); }

  void Add(const Entry& entry);

  // The most urgent chunk; null while the credit is used up.
  const Entry* Next() const;
  // Likewise, and it is on its way from here on.
  std::optional<Entry> Take();

  // The memory of `bytes` that were taken is free again.
  void Sent(int64_t bytes) { inflight_bytes_ -= bytes; }

  int64_t waiting() const { return static_cast<int64_t>(heap_.size()); }
  int64_t inflight_bytes() const { return inflight_bytes_; }
  int64_t credit_left() const { return credit_bytes_ - inflight_bytes_; }  // may be negative
  bool limited() const { return credit_bytes_ < std::numeric_limits<int64_t>::max(); }

 private:
  int64_t credit_bytes_;
  std::vector<Entry> heap_;  // the most urgent on top
  int64_t inflight_bytes_ = 0;
};

}  // namespace muster
