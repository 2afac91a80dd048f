// A worker without computation: it pushes the same gradients repeatedly and measures their round
// trips.
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
  int64_t steps = 1;       // in each round
  int rounds = 1;          // timed rounds, after one untimed round
  int64_t lone_steps = 0;  // final steps with one push at a time
};

struct BenchWorkerResult {
  std::vector<absl::Duration> rounds;
  absl::Duration round_trip;  // of one push, median over the lone steps; 0 if there are none
  std::string transport;      // Transport::name()
};

// Attaches to the coordinator as a worker and takes part in the first job it gets (bsp). It makes
// (rounds + 1) * steps + lone_steps steps. Within a round it pushes each chunk again as soon as its
// new value arrives. Blocks. The job stays unfinished; the caller must cancel it.
// Returns UNAVAILABLE if a ps is lost, DEADLINE_EXCEEDED if no job starts or nothing arrives for a
// minute, FAILED_PRECONDITION if a push is refused, CANCELLED if the job is released.
absl::StatusOr<BenchWorkerResult> RunBenchWorker(const BenchWorkerOptions& options);

}  // namespace muster::cli
