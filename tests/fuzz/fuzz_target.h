// What a fuzz target is: a reader of bytes from outside, and inputs to begin with. One source
// defines both functions; mutations_test.cc makes a test of them, libfuzzer_entry.cc a libFuzzer.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

// Reads the bytes, whatever they are: no crash, nothing out of bounds (sanitizers watch), an error
// that says what is wrong, or a value that is what it seems. A CHECK fails where it is not so. True
// if they were taken.
bool FuzzOne(absl::string_view bytes);

// Inputs that are taken.
std::vector<std::string> FuzzSeeds();

// How many mutated inputs a test tries: some seconds' worth.
int FuzzTestInputs();

}  // namespace muster
