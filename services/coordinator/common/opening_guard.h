// Guards the start of a coordinator, while it opens its state.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "absl/time/time.h"
#include "lib/fleet/daemon.h"

namespace muster {

// Ends the process if the start makes no progress for `silence_max`: a process that hangs on its
// state folder and holds the store's lease would keep every other coordinator from leading. Also
// ends it on `stop`, which nothing else checks during the start. No data can be lost, because no
// member is served yet. Active until destroyed.
class OpeningGuard {
 public:
  static constexpr absl::Duration kSilenceMax = absl::Minutes(3);

  // `stop` must outlive the guard.
  explicit OpeningGuard(const StopSignal& stop, absl::Duration silence_max = kSilenceMax);
  ~OpeningGuard();

  // Records progress, such as one loaded job. Thread-safe.
  void Advanced() { ++advances_; }

 private:
  void Watch();

  const StopSignal& stop_;
  const absl::Duration silence_max_;
  std::atomic<int64_t> advances_ = 0;
  std::atomic<bool> opened_ = false;
  std::thread thread_;  // last, because it uses the other members
};

}  // namespace muster
