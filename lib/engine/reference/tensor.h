// Dense tensors of doubles, indexed as in mathematics.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "absl/types/span.h"

namespace muster::reference {

using Shape = std::vector<int64_t>;
using Index = std::vector<int64_t>;

int64_t Elements(const Shape& shape);

struct Tensor {
  Shape shape;                 // empty: a scalar
  std::vector<double> values;  // row-major; whole numbers in a tensor of integers
  bool is_integer = false;

  int64_t rank() const { return static_cast<int64_t>(shape.size()); }
  int64_t last() const { return shape.back(); }

  // The element at `index`, one number per dimension.
  double operator()(absl::Span<const int64_t> index) const { return values[Offset(index)]; }
  double operator()(std::initializer_list<int64_t> index) const {
    return (*this)(absl::MakeConstSpan(index.begin(), index.size()));
  }
  double& at(absl::Span<const int64_t> index) { return values[Offset(index)]; }
  double& at(std::initializer_list<int64_t> index) {
    return at(absl::MakeConstSpan(index.begin(), index.size()));
  }

  // The element that numpy's broadcasting puts at `index` of a result.
  double Broadcast(absl::Span<const int64_t> index) const;

 private:
  int64_t Offset(absl::Span<const int64_t> index) const;
};

// The next index in row-major order; false after the last.
bool Next(const Shape& shape, Index& index);

// Calls f(index) for every index in row-major order.
template <typename F>
void ForEach(const Shape& shape, F f) {
  Index index(shape.size(), 0);
  do {
    f(index);
  } while (Next(shape, index));
}

// The tensor whose element at an index is value(index).
template <typename F>
Tensor Generate(const Shape& shape, F value) {
  Tensor tensor{.shape = shape};
  tensor.values.reserve(Elements(shape));
  ForEach(shape, [&](const Index& index) { tensor.values.push_back(value(index)); });
  return tensor;
}

inline Tensor Zeros(const Shape& shape) {
  return {.shape = shape, .values = std::vector<double>(Elements(shape), 0.0)};
}

inline Tensor Scalar(double value) { return {.shape = {}, .values = {value}}; }

// numpy's broadcasting, both ways.
Shape BroadcastShapes(const Shape& a, const Shape& b);

// `index` with number `k` set to `i`.
inline Index With(Index index, int64_t k, int64_t i) {
  index[k] = i;
  return index;
}

// The dimension that `axis` means in a tensor of `rank` dimensions: negative from the end.
inline int64_t Dimension(int64_t axis, int64_t rank) { return axis < 0 ? axis + rank : axis; }

}  // namespace muster::reference
