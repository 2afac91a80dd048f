// What a member's /metrics says.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tests/training_cluster.h"

namespace muster {

// Address of /metrics by member; "coordinator" is one.
std::map<std::string, std::string> MetricsUrls(TrainingCluster& cluster);

// The body of http://<host>:<port>/metrics, asked for on loopback.
std::string ScrapeMetrics(const std::string& url);

// Sum of all samples of a family on such a page.
double MetricTotal(const std::string& page, const std::string& family);

// Waits until the job's first worker has done `steps` more steps. The job's own progress is
// reported once a second, in which a short job ends.
void AwaitMoreSteps(TrainingCluster& cluster, const std::string& job, int64_t steps);

}  // namespace muster
