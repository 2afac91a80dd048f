// The yardstick of `muster bench sync`. It makes the same round trip directly on a substrate: push
// a gradient, sum, p -= lr * g, return the value. It uses one thread per side and nothing else.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace muster {

struct BareLoopOptions {
  // "shm": memory that all processes map; the server reads gradients and writes values in place.
  // "ucx-shm", "ucx-tcp": UCX tag messages over shared memory or TCP, without peer error handling.
  // "tcp": sockets on loopback.
  std::string substrate = "shm";
  int workers = 1;
  int servers = 1;  // server i % servers has tensor i
  int64_t message_bytes = 4096;
  int tensors = 64;  // all in flight together
  int64_t steps = 100;
  int rounds = 5;
  bool poll = true;   // both sides spin; false: they sleep while idle
  bool alone = true;  // also measure round trips of single messages
};

struct BareLoopResult {
  double gigabits_per_second =
      0;  // payload in one direction, all workers together; median of rounds
  double round_trip_microseconds = 0;  // median; 0: not measured
};

// Runs the loop. Forks one process for every server and every worker, so call it before the first
// thread starts. Returns INVALID_ARGUMENT if the options are invalid. At the end checks three
// values of every tensor, and ends the program if one is wrong.
absl::StatusOr<BareLoopResult> RunBareLoop(const BareLoopOptions& options);

}  // namespace muster
