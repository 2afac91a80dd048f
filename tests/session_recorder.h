// Settings that a test shares with a process whose incoming bytes are recorded.
#pragma once

#include <cstddef>

namespace muster {

// The environment variable that names the folder of the recordings. The first kRecordedBytesMax
// bytes of an accepted connection are appended to "PORT-PID-NUMBER" there: the local port, the
// process, and how many connections it accepted before. Nothing is recorded without the variable or
// its folder.
inline constexpr char kRecordingsVariable[] = "MUSTER_TEST_RECORDINGS";
inline constexpr size_t kRecordedBytesMax = 64 << 10;

}  // namespace muster
