#include <cstring>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/top_k.h"

namespace muster::kernels::cuda {
namespace {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;

// Returns a larger number for elements that come first. 0 and -0 get the same number. All NaNs get
// one number.
template <typename T>
__device__ uint32_t OrderOf(T element, bool largest) {
  const float x = ToFloat(element) + 0.0f;  // -0 becomes 0
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  uint32_t order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  if (isnan(x)) order = 0xffffffffu;
  return largest ? order : ~order;
}

// The order of the last chosen element. All elements of larger order are chosen, and the first
// `equals` of this order.
struct Threshold {
  uint32_t order;
  int64_t equals;
};

// Runs in one block. Finds one digit after another, the highest first, among the elements that
// share the digits found so far.
template <typename T>
__device__ Threshold FindThreshold(const T* x, const TopKShape& shape) {
  __shared__ int32_t counts[kDigits];
  __shared__ int64_t left;
  __shared__ uint32_t found;
  uint32_t order = 0, mask = 0;
  int64_t wanted = shape.chosen;
  for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (int d = threadIdx.x; d < kDigits; d += kThreads) counts[d] = 0;
    __syncthreads();
    for (int64_t c = threadIdx.x; c < shape.columns; c += kThreads) {
      const uint32_t own = OrderOf(x[c], shape.largest);
      if ((own & mask) == order) atomicAdd(&counts[own >> shift & (kDigits - 1)], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = kDigits - 1;
      for (; wanted > counts[digit]; --digit) wanted -= counts[digit];
      left = wanted;
      found = order | static_cast<uint32_t>(digit) << shift;
    }
    __syncthreads();
    wanted = left;
    order = found;
    mask |= static_cast<uint32_t>(kDigits - 1) << shift;
  }
  return {order, wanted};
}

// Returns how many threads of the block before this one are marked, and sets `total` to the number
// of all marked ones.
__device__ int CountBefore(bool is_marked, int& total) {
  __shared__ int of_warps[kThreads / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned marked = __ballot_sync(kEveryLane, is_marked);
  __syncthreads();  // wait until the values of the previous call are read
  if (lane == 0) of_warps[warp] = __popc(marked);
  __syncthreads();
  int before = __popc(marked & ((1u << lane) - 1));
  total = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w < warp) before += of_warps[w];
    total += of_warps[w];
  }
  return before;
}

// Chooses the elements of each row. `columns` and `orders` receive those above the threshold, in
// any order.
template <typename T>
__global__ void ChooseOfRows(T* values, int32_t* index, const T* x, int32_t* columns,
                             uint32_t* orders, TopKShape shape) {
  __shared__ int32_t better;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const T* from = x + row * shape.columns;
    T* to = values + row * shape.chosen;
    int32_t* to_index = index + row * shape.chosen;
    int32_t* row_columns = columns + row * shape.chosen;
    uint32_t* row_orders = orders + row * shape.chosen;
    const Threshold threshold = FindThreshold(from, shape);
    const int64_t larger = shape.chosen - threshold.equals;

    // Elements equal to the threshold follow the others, in column order.
    if (threadIdx.x == 0) better = 0;
    int64_t equals = 0;  // elements equal to the threshold in earlier columns
    __syncthreads();
    for (int64_t start = 0; start < shape.columns; start += kThreads) {
      const int64_t c = start + threadIdx.x;
      const bool is_column = c < shape.columns;
      const uint32_t order = is_column ? OrderOf(from[c], shape.largest) : 0;
      const bool is_equal = is_column && order == threshold.order;
      int total;
      const int64_t rank = equals + CountBefore(is_equal, total);
      equals += total;
      if (is_equal && rank < threshold.equals) {
        to[larger + rank] = from[c];
        to_index[larger + rank] = static_cast<int32_t>(c);
      }
      if (is_column && order > threshold.order) {
        const int32_t place = atomicAdd(&better, 1);
        row_columns[place] = static_cast<int32_t>(c);
        row_orders[place] = order;
      }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < larger; i += kThreads) {
      const uint32_t order = row_orders[i];
      const int32_t column = row_columns[i];
      int64_t rank = 0;
      for (int64_t j = 0; j < larger; ++j) {
        rank += row_orders[j] > order || (row_orders[j] == order && row_columns[j] < column);
      }
      to[rank] = from[column];
      to_index[rank] = column;
    }
    __syncthreads();  // the next row uses the same shared memory
  }
}

template <typename W>
__global__ void PutBack(W* dx, const W* dy, const int32_t* index, TopKShape shape) {
  const int64_t n = shape.rows * shape.chosen;
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    dx[i / shape.chosen * shape.columns + index[i]] = dy[i];
  }
}

}  // namespace

// The workspace has a column and an order per chosen element.
int64_t TopKWorkspaceBytes(const TopKShape& shape) {
  return 2 * shape.rows * shape.chosen * static_cast<int64_t>(sizeof(int32_t));
}

cudaError_t TopK(void* values, int32_t* index, const void* x, Type type, const TopKShape& shape,
                 void* workspace, cudaStream_t stream) {
  auto* columns = static_cast<int32_t*>(workspace);
  auto* orders = reinterpret_cast<uint32_t*>(columns + shape.rows * shape.chosen);
  const auto blocks = static_cast<unsigned>(std::min(shape.rows, kBlocksMax));
  return ForFloating(type, [&](auto one) {
    using T = decltype(one);
    return Launch(ChooseOfRows<T>, blocks, kThreads, 0, stream, static_cast<T*>(values), index,
                  static_cast<const T*>(x), columns, orders, shape);
  });
}

cudaError_t TopKGrad(void* dx, const void* dy, const int32_t* index, Type type,
                     const TopKShape& shape, cudaStream_t stream) {
  const int64_t bytes = shape.rows * shape.columns * Bytes(type);
  MUSTER_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(dx, 0, static_cast<size_t>(bytes), stream));
  const dim3 grid = Strided(shape.rows * shape.chosen);
  if (Bytes(type) == 2) {
    return Launch(PutBack<uint16_t>, grid, kThreads, 0, stream, static_cast<uint16_t*>(dx),
                  static_cast<const uint16_t*>(dy), index, shape);
  }
  return Launch(PutBack<uint32_t>, grid, kThreads, 0, stream, static_cast<uint32_t*>(dx),
                static_cast<const uint32_t*>(dy), index, shape);
}

}  // namespace muster::kernels::cuda
