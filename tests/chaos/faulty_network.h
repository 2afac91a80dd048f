// What a process under test and its tester share about faults of the network.
#pragma once

#include <atomic>
#include <cstdint>

namespace muster {

// In a file, mapped by all of them; its path is in MUSTER_TEST_NETWORK. All zeros: no faults.
struct NetworkFaults {
  // The tester's: of 2^32 bytes of the data plane that arrive over TCP, handshakes included, so
  // many have a bit flipped; of a million reads or writes of any TCP socket so many wait for some
  // milliseconds, or find that the other side has reset the connection.
  std::atomic<uint32_t> flips;
  std::atomic<uint32_t> delays;
  std::atomic<uint32_t> resets;
  // The processes': how often that was done.
  std::atomic<uint32_t> flipped;
  std::atomic<uint32_t> delayed;
  std::atomic<uint32_t> reset;
};

inline constexpr char kNetworkFaultsVariable[] = "MUSTER_TEST_NETWORK";

}  // namespace muster
