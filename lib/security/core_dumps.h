// Prevents core dumps.
#pragma once

namespace muster {

// A core dump contains everything in the process's memory: tokens, keys, parameters, samples. After
// this call neither this process nor its children leave one, whether the kernel writes dumps to
// files or passes them to a program. Exception: if the hard limit is already 0, a program still
// gets dumps. A debugger can still attach.
void ForbidCoreDumps();

}  // namespace muster
