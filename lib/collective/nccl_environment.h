// NCCL's environment variables.
#pragma once

namespace muster {

// Sets variables of this process for NCCL, each unless it is already set:
// - NCCL_ALGO=^NVLS. The sums of NVLink SHARP (NVLS) do not repeat to the bit.
//
// NCCL reads them when it starts the first communicator. Requires: no other thread runs, because
// another thread may read the environment at the same time.
void SetNcclDefaults();

}  // namespace muster
