// The yardstick of `muster bench sync`: the same round trip (push a gradient, sum, p -= lr * g,
// bring the value back) written straight onto a substrate, one thread per side, nothing else.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace muster {

struct BareLoopOptions {
  // "shm": two memory segments and flags; the server reads gradients and writes values in place.
  // "ucx-shm", "ucx-tcp": UCX tag messages over its shared memory or TCP, without peer error
  // handling. "tcp": sockets on loopback.
  std::string substrate = "shm";
  int workers = 1;
  int servers = 1;  // tensor i is of server i % servers
  int64_t message_bytes = 4096;
  int tensors = 64;  // all under way together
  int64_t steps = 100;
  int rounds = 5;
  bool poll = true;   // both sides spin; else they sleep while there is nothing to do
  bool alone = true;  // also measure round trips of one message at a time
};

struct BareLoopResult {
  double gigabits_per_second = 0;      // of payload one way, all workers together; median of rounds
  double round_trip_microseconds = 0;  // median; 0: not measured
};

// Every server and every worker is a process of its own, forked here: call before the first thread.
// INVALID_ARGUMENT for options that make no sense. Ends the program where a value that came back is
// not what the arithmetic says.
absl::StatusOr<BareLoopResult> RunBareLoop(const BareLoopOptions& options);

}  // namespace muster
