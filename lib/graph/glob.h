// Patterns by which a job names parameters.
#pragma once

#include "absl/strings/string_view.h"

namespace muster {

// Whether the whole of `name` is `pattern`, in which * stands for any characters, also none, and ?
// for one. At most pattern * name steps.
bool MatchesGlob(absl::string_view pattern, absl::string_view name);

}  // namespace muster
