// Memory for a Dataset to fill, as bytes.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"

namespace muster {

template <typename T>
absl::Span<std::byte> BytesOf(std::vector<T>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace muster
