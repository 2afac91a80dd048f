#include "kernels/cuda/gather.h"
#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {
namespace {

__device__ int64_t Resolve(int32_t index, int64_t size, bool allows_negative) {
  return allows_negative && index < 0 ? index + size : index;
}

// W: a word that divides the inner bytes; `inner` counts words.
template <typename W>
__global__ void GatherWords(W* y, const W* x, const int32_t* index, GatherShape shape,
                            int64_t inner, int* out_of_range) {
  const int64_t n = shape.outer * shape.indices * inner;
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    const int64_t slice = i / inner;
    const int64_t outer = slice / shape.indices;
    int64_t from = Resolve(index[slice - outer * shape.indices], shape.size, shape.allows_negative);
    if (from < 0 || from >= shape.size) {
      *out_of_range = 1;
      from = 0;
    }
    y[i] = x[(outer * shape.size + from) * inner + i - slice * inner];
  }
}

// A stable radix sort of (index, place) pairs, kDigitBits at a time. A warp takes a chunk of
// neighbouring pairs, 32 at a time, in order.
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int64_t kChunk = 1024;

__global__ void MakePairs(int32_t* keys, int32_t* places, const int32_t* index, GatherShape shape) {
  for (int64_t i = ThreadIndex(); i < shape.indices; i += ThreadCount()) {
    const int64_t key = Resolve(index[i], shape.size, shape.allows_negative);
    // One out of range has been reported by the forward kernel; it must only not be written to.
    keys[i] = static_cast<int32_t>(min(max(key, int64_t{0}), shape.size - 1));
    places[i] = static_cast<int32_t>(i);
  }
}

// counts[digit][chunk].
__global__ void CountDigits(int32_t* counts, const int32_t* keys, int64_t n, int shift) {
  __shared__ int32_t of_chunk[kDigits];
  for (int d = threadIdx.x; d < kDigits; d += kWarp) of_chunk[d] = 0;
  __syncthreads();
  const int64_t first = blockIdx.x * kChunk, last = min(first + kChunk, n);
  for (int64_t i = first + threadIdx.x; i < last; i += kWarp) {
    atomicAdd(&of_chunk[keys[i] >> shift & (kDigits - 1)], 1);
  }
  __syncthreads();
  for (int d = threadIdx.x; d < kDigits; d += kWarp) {
    counts[int64_t{d} * gridDim.x + blockIdx.x] = of_chunk[d];
  }
}

// Each count becomes the sum of those before it; by one block.
__global__ void SumBefore(int32_t* counts, int64_t n) {
  __shared__ int32_t of_threads[kThreads];
  const int64_t share = (n + kThreads - 1) / kThreads;
  const int64_t first = threadIdx.x * share, last = min(first + share, n);
  int32_t sum = 0;
  for (int64_t i = first; i < last; ++i) sum += counts[i];
  of_threads[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t before = 0;
    for (int32_t& of_thread : of_threads) {
      const int32_t own = of_thread;
      of_thread = before;
      before += own;
    }
  }
  __syncthreads();
  int32_t before = of_threads[threadIdx.x];
  for (int64_t i = first; i < last; ++i) {
    const int32_t own = counts[i];
    counts[i] = before;
    before += own;
  }
}

__global__ void MovePairs(int32_t* to_keys, int32_t* to_places, const int32_t* keys,
                          const int32_t* places, const int32_t* starts, int64_t n, int shift) {
  __shared__ int32_t next[kDigits];  // where the chunk's next pair of a digit goes
  for (int d = threadIdx.x; d < kDigits; d += kWarp) {
    next[d] = starts[int64_t{d} * gridDim.x + blockIdx.x];
  }
  __syncthreads();
  const int64_t first = blockIdx.x * kChunk, last = min(first + kChunk, n);
  for (int64_t start = first; start < last; start += kWarp) {
    const int64_t i = start + threadIdx.x;
    const bool is_pair = i < last;
    const int32_t key = is_pair ? keys[i] : 0;
    // Lanes without a pair share a digit that nobody has.
    const int digit = is_pair ? key >> shift & (kDigits - 1) : kDigits;
    const unsigned alike = __match_any_sync(kEveryLane, digit);
    const int before = __popc(alike & ((1u << threadIdx.x) - 1));
    int32_t to = 0;
    if (is_pair) to = next[digit] + before;
    __syncwarp();
    if (is_pair && before == 0) next[digit] += __popc(alike);
    __syncwarp();
    if (is_pair) {
      to_keys[to] = key;
      to_places[to] = places[i];
    }
  }
}

// A block per sorted place and outer index; the first of equal keys adds all of them. kUnroll loads
// are under way at once.
template <typename T>
__global__ void AddSlices(T* dx, const T* dy, const int32_t* keys, const int32_t* places,
                          GatherShape shape) {
  constexpr int kUnroll = 4;
  for (int64_t i = blockIdx.x; i < shape.indices; i += gridDim.x) {
    const int32_t key = keys[i];
    if (i > 0 && keys[i - 1] == key) continue;
    int64_t end = i + 1;
    while (end < shape.indices && keys[end] == key) ++end;
    for (int64_t outer = blockIdx.y; outer < shape.outer; outer += gridDim.y) {
      const T* from = dy + outer * shape.indices * shape.inner;
      T* to = dx + (outer * shape.size + key) * shape.inner;
      for (int64_t c = threadIdx.x; c < shape.inner; c += kThreads) {
        float sum = 0;
        int64_t j = i;
        for (; j + kUnroll <= end; j += kUnroll) {
          float terms[kUnroll];
#pragma unroll
          for (int k = 0; k < kUnroll; ++k) {
            terms[k] = ToFloat(from[places[j + k] * shape.inner + c]);
          }
#pragma unroll
          for (float term : terms) sum += term;
        }
        for (; j < end; ++j) sum += ToFloat(from[places[j] * shape.inner + c]);
        to[c] = FromFloat<T>(sum);
      }
    }
  }
}

int64_t Chunks(const GatherShape& shape) { return CeilDiv(shape.indices, kChunk); }

template <typename W>
cudaError_t LaunchGather(void* y, const void* x, const int32_t* index, const GatherShape& shape,
                         int64_t inner_bytes, int* out_of_range, cudaStream_t stream) {
  const int64_t inner = inner_bytes / static_cast<int64_t>(sizeof(W));
  return Launch(GatherWords<W>, Strided(shape.outer * shape.indices * inner), kThreads, 0, stream,
                static_cast<W*>(y), static_cast<const W*>(x), index, shape, inner, out_of_range);
}

}  // namespace

cudaError_t Gather(void* y, const void* x, const int32_t* index, const GatherShape& shape,
                   int element_bytes, int* out_of_range, cudaStream_t stream) {
  const int64_t bytes = shape.inner * element_bytes;
  if (bytes % 16 == 0) {
    return LaunchGather<uint4>(y, x, index, shape, bytes, out_of_range, stream);
  }
  if (bytes % 4 == 0) {
    return LaunchGather<uint32_t>(y, x, index, shape, bytes, out_of_range, stream);
  }
  return LaunchGather<uint16_t>(y, x, index, shape, bytes, out_of_range, stream);
}

// Two arrays of pairs, and the counts.
int64_t GatherGradWorkspaceBytes(const GatherShape& shape) {
  return (4 * shape.indices + kDigits * Chunks(shape)) * static_cast<int64_t>(sizeof(int32_t));
}

cudaError_t GatherGrad(void* dx, const void* dy, const int32_t* index, Type type,
                       const GatherShape& shape, void* workspace, cudaStream_t stream) {
  const int64_t n = shape.indices;
  auto* keys = static_cast<int32_t*>(workspace);
  int32_t* places = keys + n;
  int32_t* other_keys = places + n;
  int32_t* other_places = other_keys + n;
  int32_t* counts = other_places + n;
  const auto chunks = static_cast<unsigned>(Chunks(shape));

  const int64_t bytes = shape.outer * shape.size * shape.inner * Bytes(type);
  MUSTER_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(dx, 0, static_cast<size_t>(bytes), stream));
  MUSTER_RETURN_IF_CUDA_ERROR(
      Launch(MakePairs, Strided(n), kThreads, 0, stream, keys, places, index, shape));
  for (int shift = 0; shift < 31 && (shape.size - 1) >> shift > 0; shift += kDigitBits) {
    MUSTER_RETURN_IF_CUDA_ERROR(
        Launch(CountDigits, chunks, kWarp, 0, stream, counts, keys, n, shift));
    MUSTER_RETURN_IF_CUDA_ERROR(
        Launch(SumBefore, 1, kThreads, 0, stream, counts, kDigits * Chunks(shape)));
    MUSTER_RETURN_IF_CUDA_ERROR(Launch(MovePairs, chunks, kWarp, 0, stream, other_keys,
                                       other_places, keys, places, counts, n, shift));
    std::swap(keys, other_keys);
    std::swap(places, other_places);
  }
  const auto blocks = static_cast<unsigned>(std::min(n, kBlocksMax));
  const auto outer = static_cast<unsigned>(std::min<int64_t>(shape.outer, 1024));
  return ForFloating(type, [&](auto one) {
    using T = decltype(one);
    return Launch(AddSlices<T>, dim3(blocks, outer), kThreads, 0, stream, static_cast<T*>(dx),
                  static_cast<const T*>(dy), keys, places, shape);
  });
}

}  // namespace muster::kernels::cuda
