// The command-line flags of ps and worker that choose how they reach their peers.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/tcp/data_port.h"

namespace muster {

// Of a process in which `pollers` threads each have a transport and `busy_threads` others compute.
struct TransportThreads {
  int pollers = 1;
  int busy_threads = 0;
};

// Whom the data port is for, where --data_port names no host.
enum class DataReach { kAnywhere, kThisHost };

// What --transport, --poll and the flags of the data port say; opens the port, which all transports
// of the factory share, where they use TCP, and exports who is turned away there. `metrics`
// outlives the factory. INVALID_ARGUMENT names the flag that is wrong, UNAVAILABLE the port that
// cannot be had.
absl::StatusOr<TransportFactory> TransportFromFlags(TransportThreads threads, Metrics& metrics,
                                                    DataReach reach = DataReach::kAnywhere);

// What --data_port means: [HOST:]PORT or [HOST:]FIRST-LAST, an IPv6 host in brackets; the first
// free one of a range, 0: any. INVALID_ARGUMENT, without the flag's name.
absl::Status ParseDataPort(absl::string_view text, DataPortOptions& options);

// What --transport says, for introducing this process to others.
std::string TransportWord();

}  // namespace muster
