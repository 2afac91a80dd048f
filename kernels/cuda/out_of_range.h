// An id or a target that the model has no place for, as kernels report it.
#pragma once

#include <cstdint>

namespace muster::kernels::cuda {

// In device memory, zero before a run. Where several ids are out of range, `id` is one of them.
struct OutOfRange {
  int32_t found = 0;  // 1 where there is one
  int32_t id = 0;
};

}  // namespace muster::kernels::cuda
