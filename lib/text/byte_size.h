// Writes amounts of memory for people.
#pragma once

#include <cstdint>
#include <string>

namespace muster {

// Returns "512 B", "1.5 KiB", "3.2 MiB", up to PiB.
std::string FormatBytes(int64_t bytes);

}  // namespace muster
