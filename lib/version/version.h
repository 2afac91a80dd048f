// Which Muster this is: the number in the file VERSION at the root of the repository.
#pragma once

namespace muster {

// "0.2.0": the label of muster_build_info, and what members introduce themselves with.
const char* Version();

}  // namespace muster
