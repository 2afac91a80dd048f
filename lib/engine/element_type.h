// Maps a graph's element type to the kernels' element type.
#pragma once

#include "glog/logging.h"
#include "kernels/conversion.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Requires: a type that has elements, so not DTYPE_STATE.
inline kernels::ElementType ElementTypeOf(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return kernels::ElementType::kF32;
    case v1::DTYPE_I32:
      return kernels::ElementType::kI32;
    case v1::DTYPE_BF16:
      return kernels::ElementType::kBf16;
    case v1::DTYPE_F16:
      return kernels::ElementType::kF16;
    default:
      LOG(FATAL) << "dtype " << dtype << " has no elements";
  }
}

}  // namespace muster
