#include "lib/exchange/send_queue.h"

#include <algorithm>
#include <functional>

namespace muster {

void SendQueue::Add(const Entry& entry) {
  heap_.push_back(entry);
  std::ranges::push_heap(heap_, std::greater<>(), &Entry::urgency);
}

const SendQueue::Entry* SendQueue::Next() const {
  if (heap_.empty()) return nullptr;
  if (inflight_bytes_ > 0 && heap_.front().bytes > credit_left()) return nullptr;
  return &heap_.front();
}

std::optional<SendQueue::Entry> SendQueue::Take() {
  if (Next() == nullptr) return std::nullopt;
  std::ranges::pop_heap(heap_, std::greater<>(), &Entry::urgency);
  const Entry entry = heap_.back();
  heap_.pop_back();
  inflight_bytes_ += entry.bytes;
  return entry;
}

}  // namespace muster
