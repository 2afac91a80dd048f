// Finds the known name nearest to a mistyped one.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

// Returns the name in `known` with the fewest edits (insert, delete, replace, swap of neighbours)
// from `mistyped`, ignoring case; the first of equals. Returns "" if even that one needs more than
// a third of the letters changed (one edit is always allowed).
std::string NearestName(absl::string_view mistyped, const std::vector<std::string>& known);

}  // namespace muster
