#include "lib/graph/dtype.h"

#include "glog/logging.h"

namespace muster {

absl::string_view DTypeName(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return "f32";
    case v1::DTYPE_I32:
      return "i32";
    case v1::DTYPE_BF16:
      return "bf16";
    case v1::DTYPE_F16:
      return "f16";
    case v1::DTYPE_STATE:
      return "state";
    default:
      LOG(FATAL) << "not a dtype: " << dtype;
  }
}

absl::optional<v1::DType> ParseDType(absl::string_view name) {
  for (v1::DType dtype : {v1::DTYPE_F32, v1::DTYPE_I32, v1::DTYPE_BF16, v1::DTYPE_F16}) {
    if (DTypeName(dtype) == name) return dtype;
  }
  return absl::nullopt;
}

int64_t DTypeBytes(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F32:
    case v1::DTYPE_I32:
      return 4;
    case v1::DTYPE_BF16:
    case v1::DTYPE_F16:
      return 2;
    case v1::DTYPE_STATE:
      return 0;
    default:
      LOG(FATAL) << "not a dtype: " << dtype;
  }
}

}  // namespace muster
