// Prometheus beside a local cluster: it scrapes the members and watches Muster's alerts.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/local/local_cluster.h"

namespace muster::cli {

// One for each cluster, on loopback, at port 9090 or, where that is taken, a free one. It outlives
// this process, and keeps a day of what it has seen in <dir>/prometheus. `instance` is the name of
// the member that a series is of. Thread-compatible.
class LocalPrometheus {
 public:
  // Of the cluster in `dir`, whether or not it runs.
  explicit LocalPrometheus(const std::string& dir);

  // "http://127.0.0.1:9090" while it runs.
  std::optional<std::string> url() const;

  // Has it scrape the members that are attached now; starts it where it does not run. NOT_FOUND:
  // there is no `prometheus` in PATH; UNAVAILABLE: it did not come up.
  absl::Status Observe(const LocalCluster& cluster);

  // Ends it; nothing happens where it does not run.
  void Stop();

 private:
  struct Running {
    Process process;
    std::string url;
  };
  std::optional<Running> Find() const;
  absl::Status WriteTargets(const LocalCluster& cluster) const;
  absl::Status Start() const;

  const std::string folder_;
};

}  // namespace muster::cli
