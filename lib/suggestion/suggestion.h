// The known name nearest to a mistyped one.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

// The name in `known` with the fewest edits (insert, delete, replace, swap of neighbours) from
// `mistyped`, case ignored; the first of equals. "" when even that one needs more than a third of
// the letters changed (one edit is always allowed).
std::string NearestName(absl::string_view mistyped, const std::vector<std::string>& known);

}  // namespace muster
