// Settings that a test shares with a process whose incoming bytes are recorded.
#pragma once

#include <cstddef>

namespace muster {

// A folder. The bytes of an accepted connection, up to a limit, are appended to "PORT-PID-NUMBER"
// there: the local port, the process, and the number of the accepted connection. Nothing is
// recorded if the folder does not exist.
inline constexpr char kRecordingsVariable[] = "MUSTER_TEST_RECORDINGS";
inline constexpr size_t kRecordedBytesMax = 64 << 10;

}  // namespace muster
