#include "lib/collective/nccl_environment.h"

#include <cstdlib>

namespace muster {

void SetNcclDefaults() { setenv("NCCL_ALGO", "^NVLS", /*overwrite=*/0); }

}  // namespace muster
