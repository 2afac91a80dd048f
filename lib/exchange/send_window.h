// Limits how far sends may run ahead of the oldest unfinished one.
#pragma once

#include <cstdint>
#include <vector>

namespace muster {

// Counts bytes over all links, in the order in which sends begin. The window spans all sends from
// the oldest unfinished one to the newest. While it is full no send begins, so a slow send gets the
// network for itself.
//
// Thread-compatible. Nothing is allocated after construction.
class SendWindow {
 public:
  // `sends` is the largest number of sends under way at the same time.
  SendWindow(int64_t bytes_max, int sends) : bytes_max_(bytes_max), sends_(sends) {}

  // A send larger than the window goes alone.
  bool Admits(int64_t bytes) const { return oldest_ == next_ || span() + bytes <= bytes_max_; }

  // Begins a send; returns its ticket for End().
  int64_t Begin(int64_t bytes);
  void End(int64_t ticket);

  int64_t span() const { return begun_bytes_ - first_byte_; }

 private:
  struct Send {
    int64_t end = 0;  // position of its last byte, counted from the start
    bool done = false;
  };
  Send& At(int64_t ticket) { return sends_[ticket % sends_.size()]; }

  const int64_t bytes_max_;
  std::vector<Send> sends_;  // a ring of [oldest_, next_)
  int64_t oldest_ = 0;
  int64_t next_ = 0;
  int64_t begun_bytes_ = 0;
  int64_t first_byte_ = 0;  // position of the oldest send's first byte
};

}  // namespace muster
