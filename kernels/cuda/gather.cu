#include "kernels/cuda/gather.h"
#include "kernels/cuda/index_sort.h"
#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {
namespace {

__device__ int64_t Resolve(int32_t index, int64_t size, bool allows_negative) {
  return allows_negative && index < 0 ? index + size : index;
}

// W: a word that divides the inner bytes; `inner` counts words.
template <typename W>
__global__ void GatherWords(W* y, const W* x, const int32_t* index, GatherShape shape,
                            int64_t inner, OutOfRange* out_of_range) {
  const int64_t n = shape.outer * shape.indices * inner;
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    const int64_t slice = i / inner;
    const int64_t outer = slice / shape.indices;
    int64_t from = Resolve(index[slice - outer * shape.indices], shape.size, shape.allows_negative);
    if (from < 0 || from >= shape.size) {
      Report(out_of_range, index[slice - outer * shape.indices]);
      from = 0;
    }
    y[i] = x[(outer * shape.size + from) * inner + i - slice * inner];
  }
}

__global__ void MakePairs(int32_t* keys, int32_t* places, const int32_t* index, GatherShape shape) {
  for (int64_t i = ThreadIndex(); i < shape.indices; i += ThreadCount()) {
    const int64_t key = Resolve(index[i], shape.size, shape.allows_negative);
    // One out of range has been reported by the forward kernel; it must only not be written to.
    keys[i] = static_cast<int32_t>(min(max(key, int64_t{0}), shape.size - 1));
    places[i] = static_cast<int32_t>(i);
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

template <typename W>
cudaError_t LaunchGather(void* y, const void* x, const int32_t* index, const GatherShape& shape,
                         int64_t inner_bytes, OutOfRange* out_of_range, cudaStream_t stream) {
  const int64_t inner = inner_bytes / static_cast<int64_t>(sizeof(W));
  return Launch(GatherWords<W>, Strided(shape.outer * shape.indices * inner), kThreads, 0, stream,
                static_cast<W*>(y), static_cast<const W*>(x), index, shape, inner, out_of_range);
}

}  // namespace

cudaError_t Gather(void* y, const void* x, const int32_t* index, const GatherShape& shape,
                   int element_bytes, OutOfRange* out_of_range, cudaStream_t stream) {
  const int64_t bytes = shape.inner * element_bytes;
  if (bytes % 16 == 0) {
    return LaunchGather<uint4>(y, x, index, shape, bytes, out_of_range, stream);
  }
  if (bytes % 4 == 0) {
    return LaunchGather<uint32_t>(y, x, index, shape, bytes, out_of_range, stream);
  }
  return LaunchGather<uint16_t>(y, x, index, shape, bytes, out_of_range, stream);
}

int64_t GatherGradWorkspaceBytes(const GatherShape& shape) {
  return IndexSortWorkspaceBytes(shape.indices);
}

cudaError_t GatherGrad(void* dx, const void* dy, const int32_t* index, Type type,
                       const GatherShape& shape, void* workspace, cudaStream_t stream) {
  const int64_t n = shape.indices;
  const int64_t bytes = shape.outer * shape.size * shape.inner * Bytes(type);
  MUSTER_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(dx, 0, static_cast<size_t>(bytes), stream));
  IndexPairs pairs = PairsToSort(workspace, n);
  MUSTER_RETURN_IF_CUDA_ERROR(
      Launch(MakePairs, Strided(n), kThreads, 0, stream, pairs.keys, pairs.places, index, shape));
  MUSTER_RETURN_IF_CUDA_ERROR(SortPairs(pairs, n, shape.size, workspace, stream));
  const auto blocks = static_cast<unsigned>(std::min(n, kBlocksMax));
  const auto outer = static_cast<unsigned>(std::min<int64_t>(shape.outer, 1024));
  return ForFloating(type, [&](auto one) {
    using T = decltype(one);
    return Launch(AddSlices<T>, dim3(blocks, outer), kThreads, 0, stream, static_cast<T*>(dx),
                  static_cast<const T*>(dy), pairs.keys, pairs.places, shape);
  });
}

}  // namespace muster::kernels::cuda
