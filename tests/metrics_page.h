// Reads a member's /metrics.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tests/training_cluster.h"

namespace muster {

// Returns the address of /metrics by member, including "coordinator".
std::map<std::string, std::string> MetricsUrls(TrainingCluster& cluster);

// Returns the body of http://<host>:<port>/metrics, requested on loopback.
std::string ScrapeMetrics(const std::string& url);

// Returns the sum of all samples of a family on such a page.
double MetricTotal(const std::string& page, const std::string& family);

// Blocks until the job's first worker has done `steps` more steps. The job's own progress is
// reported only once a second, too late for a short job.
void AwaitMoreSteps(TrainingCluster& cluster, const std::string& job, int64_t steps);

}  // namespace muster
