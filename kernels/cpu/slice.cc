#include "kernels/slice.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/loop_nest.h"
#include "kernels/cpu/parallel.h"

namespace muster::kernels {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements of a parallel piece

// A part of a tensor: sizes[d] elements of each dimension, starting at starts[d], every
// steps[d]-th.
struct Part {
  LoopNest<1> loops;  // loops over the part's elements in order; strides are those of the tensor
  int64_t first = 0;  // offset of the first element
};

Part PartOf(Dimensions tensor, Dimensions sizes, Dimensions starts, Dimensions steps) {
  CheckRank(tensor.size());
  std::array<int64_t, kDimensionsMax> strides;
  int64_t elements = 1;
  for (int64_t d = static_cast<int64_t>(tensor.size()) - 1; d >= 0; --d) {
    strides[d] = elements;
    elements *= tensor[d];
  }
  Part part;
  for (size_t d = 0; d < tensor.size(); ++d) {
    const int64_t step = steps.empty() ? 1 : steps[d];
    part.first += starts[d] * strides[d];
    const int outer = part.loops.rank - 1;
    // A dimension that is taken completely is merged with the one around it.
    if (outer >= 0 && part.loops.strides[0][outer] == step * strides[d] * sizes[d]) {
      part.loops.sizes[outer] *= sizes[d];
      part.loops.strides[0][outer] = step * strides[d];
    } else {
      part.loops.Append(sizes[d], {step * strides[d]});
    }
  }
  if (part.loops.rank == 0) part.loops.Append(1, {1});
  return part;
}

// Calls run(offset in the part, offset in the tensor, stride in the tensor, elements) for runs that
// cover the part.
template <typename F>
void ForEachRun(const Part& part, F run) {
  LoopNest<1> rows = part.loops;
  const int64_t n = rows.sizes[--rows.rank], stride = rows.strides[0][rows.rank];
  ParallelFor(part.loops.iterations(), kGrain, [&](int64_t begin, int64_t end) {
    NestCursor<1> cursor(rows, begin / n);
    int64_t column = begin % n;
    while (begin < end) {
      const int64_t count = std::min(n - column, end - begin);
      run(begin, part.first + cursor.offset(0) + column * stride, stride, count);
      begin += count;
      column = 0;
      cursor.Next();
    }
  });
}

template <typename T>
void TakePart(T* y, const T* x, const Part& part) {
  ForEachRun(part, [=](int64_t to, int64_t from, int64_t stride, int64_t n) {
    if (stride == 1) {
      std::memcpy(y + to, x + from, n * sizeof(T));
    } else {
      for (int64_t i = 0; i < n; ++i) y[to + i] = x[from + i * stride];
    }
  });
}

template <typename T>
void PutPart(T* y, const T* x, const Part& part) {
  ForEachRun(part, [=](int64_t from, int64_t to, int64_t stride, int64_t n) {
    if (stride == 1) {
      std::memcpy(y + to, x + from, n * sizeof(T));
    } else {
      for (int64_t i = 0; i < n; ++i) y[to + i * stride] = x[from + i];
    }
  });
}

template <typename T>
void Fill(T* y, T value, int64_t n) {
  ParallelFor(n, kGrain, [=](int64_t begin, int64_t end) { std::fill(y + begin, y + end, value); });
}

template <typename T>
void FillAndPut(void* y, Dimensions y_dimensions, const void* value, const void* x,
                const Part& part) {
  T fill;
  std::memcpy(&fill, value, sizeof(fill));
  Fill(static_cast<T*>(y), fill, Elements(y_dimensions));
  PutPart(static_cast<T*>(y), static_cast<const T*>(x), part);
}

void FillAndPut(void* y, Dimensions y_dimensions, const void* value, const void* x,
                const Part& part, int element_bytes) {
  (element_bytes == 2 ? FillAndPut<uint16_t> : FillAndPut<uint32_t>)(y, y_dimensions, value, x,
                                                                     part);
}

void Take(void* y, const void* x, const Part& part, int element_bytes) {
  if (element_bytes == 2) {
    TakePart(static_cast<uint16_t*>(y), static_cast<const uint16_t*>(x), part);
  } else {
    TakePart(static_cast<uint32_t*>(y), static_cast<const uint32_t*>(x), part);
  }
}

// Returns the shape including its border.
std::vector<int64_t> Padded(Dimensions inside, Dimensions begins, Dimensions ends) {
  std::vector<int64_t> padded(inside.begin(), inside.end());
  for (size_t d = 0; d < padded.size(); ++d) padded[d] += begins[d] + ends[d];
  return padded;
}

}  // namespace

void Slice(void* y, Dimensions sizes, const void* x, Dimensions x_dimensions, Dimensions starts,
           Dimensions steps, int element_bytes) {
  Take(y, x, PartOf(x_dimensions, sizes, starts, steps), element_bytes);
}

void SliceGrad(void* dx, Dimensions x_dimensions, const void* dy, Dimensions sizes,
               Dimensions starts, Dimensions steps, int element_bytes) {
  const uint32_t zero = 0;
  FillAndPut(dx, x_dimensions, &zero, dy, PartOf(x_dimensions, sizes, starts, steps),
             element_bytes);
}

void Pad(void* y, const void* x, Dimensions x_dimensions, Dimensions begins, Dimensions ends,
         const void* value, int element_bytes) {
  const std::vector<int64_t> padded = Padded(x_dimensions, begins, ends);
  FillAndPut(y, padded, value, x, PartOf(padded, x_dimensions, begins, /*steps=*/{}),
             element_bytes);
}

void PadGrad(void* dx, Dimensions x_dimensions, const void* dy, Dimensions begins, Dimensions ends,
             int element_bytes) {
  const std::vector<int64_t> padded = Padded(x_dimensions, begins, ends);
  Take(dx, dy, PartOf(padded, x_dimensions, begins, /*steps=*/{}), element_bytes);
}

}  // namespace muster::kernels
