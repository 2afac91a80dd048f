// What a process under test and its tester share about recordings of what the process is sent.
#pragma once

#include <cstddef>

namespace muster {

// A folder. What comes in over an accepted connection, up to so many bytes, is appended to
// "PORT-PID-NUMBER" there: the port that it came to, the process, the how manieth it accepted.
// Without the folder, or once it is gone, nothing is recorded.
inline constexpr char kRecordingsVariable[] = "MUSTER_TEST_RECORDINGS";
inline constexpr size_t kRecordedBytesMax = 64 << 10;

}  // namespace muster
