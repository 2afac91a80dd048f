// How much room the coordinator's disk has, and what the store takes of it.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/telemetry/metrics.h"
#include "prometheus/gauge.h"

namespace muster {

// muster_state_free_bytes and muster_state_size_bytes, of the file system that has the least part
// left among those of the state folder, of its jobs and of the store, which may be three; and
// muster_store_bytes. All as they were at most kInterval ago. Looked at by a thread of its own: a
// disk that does not answer must hold up neither jobs nor scrapes.
class StateDisk {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(10);

  struct Paths {
    std::string folder;
    std::string store;  // the store's file; it need not be there
  };
  using Space =
      std::function<std::filesystem::space_info(const std::string& path, std::error_code& error)>;
  static std::filesystem::space_info SpaceOf(const std::string& path, std::error_code& error) {
    return std::filesystem::space(path, error);
  }
  // `metrics` outlives this.
  StateDisk(Paths paths, Metrics& metrics, Space space = SpaceOf);
  ~StateDisk();

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void Look();

  const Paths paths_;
  const Space space_;
  prometheus::Gauge& free_;
  prometheus::Gauge& size_;
  prometheus::Gauge& store_bytes_;
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace muster
