// Where this program lies.
#pragma once

#include <string>

namespace muster {

// The absolute path by which this program can be started again; "" where that cannot be said.
//
// Under a bundle's own loader (tools/bundle.sh) /proc/self/exe is that loader. The bundle's script
// therefore says in argv[0] what was started, and an absolute argv[0] that can be executed is
// believed. Thread-safe.
std::string ProgramPath();

}  // namespace muster
