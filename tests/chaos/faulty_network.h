// Fault settings and counters that a test shares with the processes under test.
#pragma once

#include <atomic>
#include <cstdint>

namespace muster {

// Lives in a file that the test and all processes map. The environment variable MUSTER_TEST_NETWORK
// has its path. All zeros: no faults.
struct NetworkFaults {
  // Set by the test. `flips`: of 2^32 bytes received over TCP by the data plane, including
  // handshakes, this many get a flipped bit. `delays`, `resets`: of a million reads or writes of a
  // TCP socket, this many are delayed by some milliseconds or fail with a connection reset.
  std::atomic<uint32_t> flips;
  std::atomic<uint32_t> delays;
  std::atomic<uint32_t> resets;
  // Counted by the processes.
  std::atomic<uint32_t> flipped;
  std::atomic<uint32_t> delayed;
  std::atomic<uint32_t> reset;
};

inline constexpr char kNetworkFaultsVariable[] = "MUSTER_TEST_NETWORK";

}  // namespace muster
