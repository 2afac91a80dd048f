// How much room the coordinator's disk has, and what the store takes of it.
#pragma once

#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/telemetry/metrics.h"
#include "prometheus/gauge.h"

namespace muster {

// muster_state_free_bytes, muster_state_size_bytes (of the file system) and muster_store_bytes, as
// they were at most kInterval ago. Looked at by a thread of its own: a disk that does not answer
// must hold up neither jobs nor scrapes.
class StateDisk {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(10);

  struct Paths {
    std::string folder;
    std::string store;  // the store's file; it need not be there
  };
  // `metrics` outlives this.
  StateDisk(Paths paths, Metrics& metrics);
  ~StateDisk();

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void Look();

  const Paths paths_;
  prometheus::Gauge& free_;
  prometheus::Gauge& size_;
  prometheus::Gauge& store_bytes_;
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace muster
