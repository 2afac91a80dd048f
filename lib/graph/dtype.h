// The element types of tensors.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// "f32", "i32", "bf16", "f16" or "state".
absl::string_view DTypeName(v1::DType dtype);

// Returns the element type that a word attribute names; nullopt for an unknown name and for
// "state".
absl::optional<v1::DType> ParseDType(absl::string_view name);

// Returns the bytes of one element. Returns 0 for DTYPE_STATE: the device decides its size.
int64_t DTypeBytes(v1::DType dtype);

inline bool IsFloating(v1::DType dtype) {
  return dtype == v1::DTYPE_F32 || dtype == v1::DTYPE_BF16 || dtype == v1::DTYPE_F16;
}

}  // namespace muster
