// Exports the free space of the coordinator's disk and the size of the store.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>

#include "absl/time/time.h"
#include "lib/concurrency/repeater.h"
#include "lib/telemetry/metrics.h"
#include "prometheus/gauge.h"

namespace muster {

// Exports muster_state_free_bytes and muster_state_size_bytes of the fullest file system among
// those of the state folder, its jobs and the store, which may be three. Also exports
// muster_store_bytes. The values are at most kInterval old. A thread of its own reads them, because
// a disk that hangs must delay neither jobs nor scrapes.
class StateDisk {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(10);

  struct Paths {
    std::string folder;
    std::string store;  // the store's file; it may be missing
  };
  using Space =
      std::function<std::filesystem::space_info(const std::string& path, std::error_code& error)>;
  static std::filesystem::space_info SpaceOf(const std::string& path, std::error_code& error) {
    return std::filesystem::space(path, error);
  }
  // `metrics` must outlive this.
  StateDisk(Paths paths, Metrics& metrics, Space space = SpaceOf);

 private:
  void Look();

  const Paths paths_;
  const Space space_;
  prometheus::Gauge& free_;
  prometheus::Gauge& size_;
  prometheus::Gauge& store_bytes_;
  std::optional<Repeater> repeater_;  // last, because it uses the other members
};

}  // namespace muster
