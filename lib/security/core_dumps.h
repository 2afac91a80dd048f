// What a process that crashes leaves behind.
#pragma once

namespace muster {

// A core dump has all that the process knew: tokens, keys, parameters, samples. After this the
// process leaves none, whether the kernel writes dumps into files or hands them to a program, nor
// do processes that it starts. A debugger may still be attached.
void ForbidCoreDumps();

}  // namespace muster
