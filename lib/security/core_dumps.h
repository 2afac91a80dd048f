// Prevents core dumps.
#pragma once

namespace muster {

// A core dump contains everything in the process's memory: tokens, keys, parameters, samples. After
// this call neither this process nor its children leave one, whether the kernel writes dumps to
// files or passes them to a program. A debugger can still attach.
void ForbidCoreDumps();

}  // namespace muster
