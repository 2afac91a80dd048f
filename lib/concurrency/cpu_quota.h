// How many processors this process may really use.
#pragma once

namespace muster {

// The smaller of the affinity mask and the cgroup's cpu.max, rounded up; at least 1. Reads the file
// system: call once.
int UsableCpus();

}  // namespace muster
