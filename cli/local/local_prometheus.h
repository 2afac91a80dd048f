// Runs Prometheus beside a local cluster. It scrapes the members and evaluates Muster's alerts.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/local/local_cluster.h"

namespace muster::cli {

// One Prometheus per cluster, on loopback, at port 9090 or at a free port if that is taken. It
// outlives this process and keeps one day of data in <dir>/prometheus. The label `instance` of a
// series is the name of the member. Thread-compatible.
class LocalPrometheus {
 public:
  // Controls the Prometheus of the cluster in `dir`, which need not run.
  explicit LocalPrometheus(const std::string& dir);

  // Returns "http://127.0.0.1:9090" if it runs.
  std::optional<std::string> url() const;

  // Makes it scrape the members that are attached now, and starts it if it does not run. Returns
  // NOT_FOUND if `prometheus` is not in PATH, UNAVAILABLE if it does not come up.
  absl::Status Observe(const LocalCluster& cluster);

  // Ends Prometheus. No-op if it does not run.
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
