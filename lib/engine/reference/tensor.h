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
  std::vector<double> values;  // row-major; whole numbers if is_integer
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

// Advances `index` in row-major order. Returns false after the last index.
bool Next(const Shape& shape, Index& index);

// Calls f(index) for every index in row-major order.
template <typename F>
void ForEach(const Shape& shape, F f) {
  Index index(shape.size(), 0);
  do {
    f(index);
  } while (Next(shape, index));
}

// Returns a tensor with the element value(index) at every index.
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

// Returns the shape of numpy's broadcasting, in which both sides may repeat.
Shape BroadcastShapes(const Shape& a, const Shape& b);

// Returns `index` with its k-th number set to `i`.
inline Index With(Index index, int64_t k, int64_t i) {
  index[k] = i;
  return index;
}

// Returns the dimension that `axis` means in a tensor of `rank` dimensions. A negative axis counts
// from the end.
inline int64_t Dimension(int64_t axis, int64_t rank) { return axis < 0 ? axis + rank : axis; }

}  // namespace muster::reference
