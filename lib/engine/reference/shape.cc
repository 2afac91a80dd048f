// Operators that move or select elements.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "glog/logging.h"
#include "lib/engine/reference/operators.h"
#include "lib/engine/reference/tensor.h"

namespace muster::reference {
namespace {

std::vector<Tensor> Reshaped(const Tensor& x, const Shape& shape) {
  CHECK_EQ(Elements(shape), Elements(x.shape));
  Tensor y = x;
  y.shape = shape;
  return {y};
}

// Like Generate, with the element type of `x`.
template <typename F>
std::vector<Tensor> Moved(const Tensor& x, const Shape& shape, F value) {
  Tensor y = Generate(shape, value);
  y.is_integer = x.is_integer;
  return {y};
}

std::vector<Tensor> Reshape(const Call& call) {
  const Tensor& x = call[0];
  Shape shape = call.Integers("shape", {});
  for (size_t k = 0; k < shape.size(); ++k) {
    if (shape[k] == 0) shape[k] = x.shape[k];
  }
  const auto open = std::ranges::find(shape, -1);
  if (open != shape.end()) {
    *open = 1;
    *open = Elements(x.shape) / Elements(shape);
  }
  return Reshaped(x, shape);
}

std::vector<Tensor> Flatten(const Call& call) {
  const Tensor& x = call[0];
  const auto axis = x.shape.begin() + Dimension(call.Integer("axis", 1), x.rank());
  return Reshaped(x, {Elements({x.shape.begin(), axis}), Elements({axis, x.shape.end()})});
}

std::vector<Tensor> Squeeze(const Call& call) {
  const Tensor& x = call[0];
  std::vector<bool> squeezed(x.rank(), false);
  for (int64_t axis : call.Integers("axes", {})) squeezed[Dimension(axis, x.rank())] = true;
  Shape shape;
  for (int64_t k = 0; k < x.rank(); ++k) {
    if (!squeezed[k]) shape.push_back(x.shape[k]);
  }
  return Reshaped(x, shape);
}

// The axes are positions in the result's shape, as in numpy.expand_dims.
std::vector<Tensor> Unsqueeze(const Call& call) {
  const std::vector<int64_t> axes = call.Integers("axes", {});
  const int64_t rank = call[0].rank() + static_cast<int64_t>(axes.size());
  std::vector<bool> is_new(rank, false);
  for (int64_t axis : axes) is_new[Dimension(axis, rank)] = true;
  Shape shape;
  auto old = call[0].shape.begin();
  for (int64_t k = 0; k < rank; ++k) shape.push_back(is_new[k] ? 1 : *old++);
  return Reshaped(call[0], shape);
}

std::vector<Tensor> Transpose(const Call& call) {
  const Tensor& x = call[0];
  const auto permutation = call.Integers("permutation", {});
  Shape shape;
  for (int64_t k : permutation) shape.push_back(x.shape[k]);
  return Moved(x, shape, [&](const Index& index) {
    Index source(x.rank());
    for (int64_t k = 0; k < x.rank(); ++k) source[permutation[k]] = index[k];
    return x(source);
  });
}

std::vector<Tensor> Expand(const Call& call) {
  const Tensor& x = call[0];
  Shape wanted = call.Integers("shape", {});
  std::ranges::replace(wanted, 0, 1);
  if (call.has(1)) std::ranges::replace(wanted, -1, call[1].shape[0]);
  return Moved(x, BroadcastShapes(x.shape, wanted),
               [&](const Index& index) { return x.Broadcast(index); });
}

std::vector<Tensor> SampleIndex(const Call& call) {
  Tensor y = Generate({call[0].shape[0]}, [](const Index& index) { return index[0]; });
  y.is_integer = true;
  return {y};
}

std::vector<Tensor> Concat(const Call& call) {
  const int64_t axis = Dimension(call.Integer("axis", 0), call[0].rank());
  Shape shape = call[0].shape;
  shape[axis] = 0;
  for (const Tensor* x : call.inputs) shape[axis] += x->shape[axis];
  return Moved(call[0], shape, [&](const Index& index) {
    int64_t place = index[axis];
    for (const Tensor* x : call.inputs) {
      if (place < x->shape[axis]) return (*x)(With(index, axis, place));
      place -= x->shape[axis];
    }
    LOG(FATAL) << "the index is beyond the last input";
  });
}

std::vector<Tensor> Split(const Call& call) {
  const Tensor& x = call[0];
  const int64_t axis = Dimension(call.Integer("axis", 0), x.rank());
  std::vector<Tensor> parts;
  int64_t start = 0;
  for (int64_t size : call.Integers("sizes", {})) {
    parts.push_back(Moved(x, With(x.shape, axis, size), [&](const Index& index) {
      return x(With(index, axis, start + index[axis]));
    })[0]);
    start += size;
  }
  return parts;
}

std::vector<Tensor> Slice(const Call& call) {
  const Tensor& x = call[0];
  const auto axes = call.Integers("axes", {}), starts = call.Integers("starts", {}),
             ends = call.Integers("ends", {});
  const auto steps = call.Integers("steps", std::vector<int64_t>(axes.size(), 1));
  Shape shape = x.shape, first(x.rank(), 0), step(x.rank(), 1);
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t k = Dimension(axes[i], x.rank()), size = x.shape[k];
    auto place = [size](int64_t p) { return std::clamp<int64_t>(p < 0 ? p + size : p, 0, size); };
    first[k] = place(starts[i]);
    step[k] = steps[i];
    shape[k] = 0;
    for (int64_t p = first[k]; p < place(ends[i]); p += step[k]) ++shape[k];
  }
  return Moved(x, shape, [&](Index index) {
    for (int64_t k = 0; k < x.rank(); ++k) index[k] = first[k] + index[k] * step[k];
    return x(index);
  });
}

std::vector<Tensor> Pad(const Call& call) {
  const Tensor& x = call[0];
  const auto padding = call.Integers("padding", {});
  const double value = call.Number("value", 0);
  Shape shape = x.shape;
  for (int64_t k = 0; k < x.rank(); ++k) shape[k] += padding[k] + padding[x.rank() + k];
  return Moved(x, shape, [&](Index index) {
    for (int64_t k = 0; k < x.rank(); ++k) {
      index[k] -= padding[k];
      if (index[k] < 0 || index[k] >= x.shape[k]) return value;
    }
    return x(index);
  });
}

std::vector<Tensor> Gather(const Call& call) {
  const Tensor &x = call[0], &places = call[1];
  const int64_t axis = Dimension(call.Integer("axis", 0), x.rank());
  Shape shape(x.shape.begin(), x.shape.begin() + axis);
  shape.insert(shape.end(), places.shape.begin(), places.shape.end());
  shape.insert(shape.end(), x.shape.begin() + axis + 1, x.shape.end());
  return Moved(x, shape, [&](const Index& index) {
    const auto from = index.begin() + axis, to = from + places.rank();
    const auto place = static_cast<int64_t>(places(Index(from, to)));
    Index source(index.begin(), from);
    source.push_back(place < 0 ? place + x.shape[axis] : place);
    source.insert(source.end(), to, index.end());
    return x(source);
  });
}

// Returns the place in x that an index tensor's element `value` at `at` selects.
Index IndexedPlace(const Index& at, double value, int64_t axis, const Tensor& x) {
  const auto place = static_cast<int64_t>(value);
  return With(at, axis, place < 0 ? place + x.shape[axis] : place);
}

std::vector<Tensor> GatherElements(const Call& call) {
  const Tensor &x = call[0], &index = call[1];
  const int64_t axis = Dimension(call.Integer("axis", 0), x.rank());
  return Moved(x, index.shape,
               [&](const Index& at) { return x(IndexedPlace(at, index(at), axis, x)); });
}

std::vector<Tensor> ScatterElements(const Call& call) {
  const Tensor &index = call[1], &updates = call[2];
  const bool adds = call.Word("reduction", "none") == "add";
  Tensor y = call[0];
  const int64_t axis = Dimension(call.Integer("axis", 0), y.rank());
  ForEach(index.shape, [&](const Index& at) {
    double& element = y.at(IndexedPlace(at, index(at), axis, y));
    element = adds ? element + updates(at) : updates(at);
  });
  return {y};
}

std::vector<Tensor> TopK(const Call& call) {
  const Tensor& x = call[0];
  const bool largest = call.Integer("largest", 1);
  Shape shape = x.shape;
  shape.back() = call.Integer("k", 0);
  Tensor values = Zeros(shape), index = Zeros(shape);
  index.is_integer = true;
  for (int64_t row = 0; row < Elements(x.shape) / x.last(); ++row) {
    const double* from = &x.values[row * x.last()];
    std::vector<int64_t> columns(x.last());
    std::iota(columns.begin(), columns.end(), 0);
    std::ranges::stable_sort(columns, [&](int64_t a, int64_t b) {
      return largest ? from[a] > from[b] : from[a] < from[b];
    });
    for (int64_t i = 0; i < shape.back(); ++i) {
      values.values[row * shape.back() + i] = from[columns[i]];
      index.values[row * shape.back() + i] = static_cast<double>(columns[i]);
    }
  }
  return {values, index};
}

std::vector<Tensor> Embedding(const Call& call) {
  const Tensor &ids = call[0], &table = call[1];
  Shape shape = ids.shape;
  shape.push_back(table.last());
  return {Generate(shape, [&](const Index& index) {
    const auto id = static_cast<int64_t>(ids(Index(index.begin(), index.end() - 1)));
    const int64_t row = id - call.Integer("first", 0);
    // Another rank of a split graph has the rows outside.
    return row >= 0 && row < table.shape[0] ? table({row, index.back()}) : 0.0;
  })};
}

std::vector<Tensor> Constant(const Call& call) {
  Tensor y = Zeros(call.Integers("shape", {}));
  y.is_integer = call.Word("dtype", "f32") == "i32";
  const std::vector<double> numbers = call.Numbers("values");
  const std::vector<int64_t> integers = call.Integers("integers", {});
  if (call.has("value")) {
    std::ranges::fill(y.values, call.Number("value", 0));
  } else if (y.is_integer) {
    y.values.assign(integers.begin(), integers.end());
  } else {
    y.values = numbers;
  }
  CHECK_EQ(y.values.size(), Elements(y.shape));
  return {y};
}

}  // namespace

void AddShapeOperators(Operators& operators) {
  operators["Reshape"] = Reshape;
  operators["Flatten"] = Flatten;
  operators["Squeeze"] = Squeeze;
  operators["Unsqueeze"] = Unsqueeze;
  operators["Transpose"] = Transpose;
  operators["Expand"] = Expand;
  operators["SampleIndex"] = SampleIndex;
  operators["Concat"] = Concat;
  operators["Split"] = Split;
  operators["Slice"] = Slice;
  operators["Pad"] = Pad;
  operators["Gather"] = Gather;
  operators["GatherElements"] = GatherElements;
  operators["ScatterElements"] = ScatterElements;
  operators["TopK"] = TopK;
  operators["Embedding"] = Embedding;
  operators["Constant"] = Constant;
}

}  // namespace muster::reference
