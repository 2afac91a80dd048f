// A worker that computes nothing: it pushes the same gradients again and again and measures how
// long their round trips take.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/concurrency/poll_budget.h"
#include "lib/transport/routing/routing_transport.h"

namespace muster::cli {

struct BenchWorkerOptions {
  std::string coordinator;  // host:port
  std::string member;
  LinkKind links = LinkKind::kAuto;
  PollMode poll = PollMode::kAuto;
  int64_t steps = 1;       // of a round
  int rounds = 1;          // after one that warms up
  int64_t lone_steps = 0;  // at the end, whose pushes wait for one another
};

struct BenchWorkerResult {
  std::vector<absl::Duration> rounds;
  absl::Duration round_trip;  // median of the lone pushes
  std::string transport;      // Transport::name()
};

// Attaches to the coordinator as a worker, takes the first job that it is given (bsp), and takes
// part in it: (rounds + 1) * steps + lone_steps steps. Within a round every chunk is pushed again
// as soon as its value is back. Blocks; leaves the job unfinished: cancel it then.
// UNAVAILABLE when a ps is lost, DEADLINE_EXCEEDED when nothing happens for a minute,
// FAILED_PRECONDITION when a push is refused.
absl::StatusOr<BenchWorkerResult> RunBenchWorker(const BenchWorkerOptions& options);

}  // namespace muster::cli
