// Finds the path of this program.
#pragma once

#include <string>

namespace muster {

// Returns the absolute path by which this program can be started again, or "" if it is not known.
// Thread-safe.
//
// Under a bundle's own loader (tools/bundle.sh) /proc/self/exe is that loader. So the bundle's
// script passes its path in argv[0], and an absolute, executable argv[0] has priority.
std::string ProgramPath();

}  // namespace muster
