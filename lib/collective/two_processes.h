// Two ranks of an NcclGroup on one GPU, which NCCL refuses within a process. For tests.
#pragma once

#include "absl/functional/function_ref.h"
#include "lib/collective/nccl_communicator.h"

namespace muster {

// Calls run(group, 0) in this process, and run(group, 1) in a second one, which runs the present
// test again. Each has its own NCCL_HOSTID, so that NCCL takes them for different hosts. The test
// fails if it fails in the second process. Call it once in a test.
void RunInTwoProcesses(absl::FunctionRef<void(NcclGroup& group, int rank)> run);

}  // namespace muster
