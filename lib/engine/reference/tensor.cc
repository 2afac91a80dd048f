#include "lib/engine/reference/tensor.h"

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "glog/logging.h"

namespace muster::reference {

int64_t Elements(const Shape& shape) {
  int64_t elements = 1;
  for (int64_t size : shape) elements *= size;
  return elements;
}

int64_t Tensor::Offset(absl::Span<const int64_t> index) const {
  CHECK_EQ(index.size(), shape.size());
  int64_t offset = 0;
  for (int64_t k = 0; k < rank(); ++k) {
    CHECK_GE(index[k], 0);
    CHECK_LT(index[k], shape[k]);
    offset = offset * shape[k] + index[k];
  }
  return offset;
}

double Tensor::Broadcast(absl::Span<const int64_t> index) const {
  const int64_t skipped = static_cast<int64_t>(index.size()) - rank();
  int64_t offset = 0;
  for (int64_t k = 0; k < rank(); ++k) {
    offset = offset * shape[k] + (shape[k] == 1 ? 0 : index[skipped + k]);
  }
  return values[offset];
}

bool Next(const Shape& shape, Index& index) {
  for (int64_t k = static_cast<int64_t>(shape.size()) - 1; k >= 0; --k) {
    if (++index[k] < shape[k]) return true;
    index[k] = 0;
  }
  return false;
}

Shape BroadcastShapes(const Shape& a, const Shape& b) {
  const int64_t rank = std::max(a.size(), b.size());
  auto size = [rank](const Shape& shape, int64_t k) {
    const int64_t own = k - (rank - static_cast<int64_t>(shape.size()));
    return own < 0 ? 1 : shape[own];
  };
  Shape shape;
  for (int64_t k = 0; k < rank; ++k) {
    const int64_t x = size(a, k), y = size(b, k);
    CHECK(x == y || x == 1 || y == 1) << x << " and " << y << " do not broadcast";
    shape.push_back(x == 1 ? y : x);
  }
  return shape;
}

}  // namespace muster::reference
