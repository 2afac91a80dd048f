// "did you mean" for mistyped flags of a daemon.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace muster {

// Returns a line such as "--adress_file: did you mean --address_file?" for each unknown flag that
// resembles a known one. Also reads the files of --flagfile.
std::vector<std::string> SuggestFlags(absl::Span<const std::string> arguments);

}  // namespace muster
