// Looks after a coordinator that opens what it is to serve.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "absl/time/time.h"
#include "lib/fleet/daemon.h"

namespace muster {

// Until it is destroyed: ends the process where nothing was opened for so long, since one that
// hangs on its folder and holds the store's lease keeps every other from leading; and where it is
// told to stop, which nobody else hears meanwhile. Nothing can be lost: no member is served yet.
class OpeningGuard {
 public:
  static constexpr absl::Duration kSilenceMax = absl::Minutes(3);

  // `stop` outlives it.
  explicit OpeningGuard(const StopSignal& stop, absl::Duration silence_max = kSilenceMax);
  ~OpeningGuard();

  // Something was opened: a job, say. Thread-safe.
  void Advanced() { ++advances_; }

 private:
  void Watch();

  const StopSignal& stop_;
  const absl::Duration silence_max_;
  std::atomic<int64_t> advances_ = 0;
  std::atomic<bool> opened_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace muster
