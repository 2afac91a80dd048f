// Interface of a fuzz target: a reader of untrusted bytes, and its seed inputs. Each target defines
// the three functions. mutations_test.cc makes a test of them, libfuzzer_entry.cc a libFuzzer
// program.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

// Reads arbitrary bytes. Must not crash or access memory out of bounds (sanitizers check this).
// Either returns a meaningful error or a consistent value; a CHECK fails otherwise. Returns true if
// the reader accepted the bytes.
bool FuzzOne(absl::string_view bytes);

// Inputs that FuzzOne() accepts.
std::vector<std::string> FuzzSeeds();

// Number of mutated inputs that a test tries; they take some seconds.
int FuzzTestInputs();

}  // namespace muster
