// Patterns with which a job names parameters.
#pragma once

#include "absl/strings/string_view.h"

namespace muster {

// Returns whether `pattern` matches all of `name`. * matches any characters, also none, and ?
// matches one. Takes at most |pattern| * |name| steps.
bool MatchesGlob(absl::string_view pattern, absl::string_view name);

}  // namespace muster
