// Reports an id or a target that is out of the model's range from a kernel to the host.
#pragma once

#include <cstdint>

namespace muster::kernels::cuda {

// A record in device memory, zero before a run. If several ids are out of range, `id` is one of
// them.
struct OutOfRange {
  int32_t found = 0;  // 1 if an id is out of range
  int32_t id = 0;
};

}  // namespace muster::kernels::cuda
