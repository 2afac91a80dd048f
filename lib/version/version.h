// The version of Muster: the number in the file VERSION at the root of the repository.
#pragma once

namespace muster {

// Returns "0.2.0": the label of muster_build_info, and the version in a member's Hello.
const char* Version();

}  // namespace muster
