// Finds the known name nearest to a mistyped one.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

// Returns the name in `known` with the fewest edits (insert, delete, replace, swap of neighbours)
// from `mistyped`, ignoring case; the first of equals. Returns "" if even that one needs more edits
// than a third of the letters (one edit is always allowed), or if `mistyped` is empty or longer
// than 64 bytes.
std::string NearestName(absl::string_view mistyped, const std::vector<std::string>& known);

}  // namespace muster
