// Chunks that wait to be sent over one link: the most urgent first, within a credit of bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "lib/plan/numbers.h"

namespace muster {

// Bytes count against the credit from Take() to Sent(). A chunk larger than the credit is sent
// alone. Thread-compatible.
//   Source: Peng et al., "A generic communication scheduler for distributed DNN training
//   acceleration", SOSP 2019 (ByteScheduler: priority and credit).
class SendQueue {
 public:
  struct Entry {
    int64_t urgency = 0;  // the lowest is sent first; no two are equal
    ChunkId chunk{};
    int64_t bytes = 0;
  };

  // `chunks` is the largest number that can wait at the same time. Nothing is allocated afterwards.
  SendQueue(int64_t credit_bytes, int chunks) : credit_bytes_(credit_bytes) {
    heap_.reserve(chunks);
  }

  // Removes the limit of the credit.
  void Unlimit() { credit_bytes_ = std::numeric_limits<int64_t>::max(); }

  void Add(const Entry& entry);

  // Returns the most urgent chunk, or null if none waits or the credit left is less than its bytes.
  const Entry* Next() const;
  // Removes and returns Next(). Its bytes count as under way from now on.
  std::optional<Entry> Take();

  // Records that the memory of `bytes` taken bytes is free again.
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
