// How far what is being sent may run ahead of the oldest that has not been.
#pragma once

#include <cstdint>
#include <vector>

namespace muster {

// Counts bytes in the order in which sends begin, over all links: what has begun since the oldest
// send that is not done, and with it, is the window. While it is full nothing begins, so that a
// send which is slow gets the network for itself.
//
// Thread-compatible. Nothing is allocated after construction.
class SendWindow {
 public:
  // `sends`: that will ever be under way together.
  SendWindow(int64_t bytes_max, int sends) : bytes_max_(bytes_max), sends_(sends) {}

  // A send that is larger than the window goes alone.
  bool Admits(int64_t bytes) const { return oldest_ == next_ || span() + bytes <= bytes_max_; }

  // A send begins; its ticket for End().
  int64_t Begin(int64_t bytes);
  void End(int64_t ticket);

  int64_t span() const { return begun_bytes_ - first_byte_; }

 private:
  struct Send {
    int64_t end = 0;  // of its bytes, counted since ever
    bool done = false;
  };
  Send& At(int64_t ticket) { return sends_[ticket % sends_.size()]; }

  const int64_t bytes_max_;
  std::vector<Send> sends_;  // a ring of [oldest_, next_)
  int64_t oldest_ = 0;
  int64_t next_ = 0;
  int64_t begun_bytes_ = 0;
  int64_t first_byte_ = 0;  // of the oldest
};

}  // namespace muster
