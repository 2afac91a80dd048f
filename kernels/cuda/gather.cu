#include "kernels/cuda/gather.h"
#include "kernels/cuda/index_sort.h"
#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {
namespace {

// Returns the slice that an index names. It is outside [0, size) if the tensor does not have it.
__device__ int64_t Resolve(int32_t index, const GatherShape& shape) {
  if (shape.allows_negative && index < 0) return index + shape.size;
  return index - shape.first;
}

// Returns whether the index names a slice of the larger tensor.
__device__ bool IsOfWhole(int32_t index, const GatherShape& shape) {
  return index >= 0 && index < shape.whole;
}

// Copies the indexed slices word by word. The size of W divides that of a slice; `inner` is the
// size of a slice in words.
template <typename W>
__global__ void GatherWords(W* y, const W* x, const int32_t* index, GatherShape shape,
                            int64_t inner, OutOfRange* out_of_range) {
  const int64_t n = shape.outer * shape.indices * inner;
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    const int64_t slice = i / inner;
    const int64_t outer = slice / shape.indices;
    const int32_t own = index[slice - outer * shape.indices];
    int64_t from = Resolve(own, shape);
    if (from < 0 || from >= shape.size) {
      if (IsOfWhole(own, shape)) {
        y[i] = W{};
        continue;
      }
      Report(out_of_range, own);
      from = 0;
    }
    y[i] = x[(outer * shape.size + from) * inner + i - slice * inner];
  }
}

// The key of an index that names a slice of another part is shape.size.
__global__ void MakePairs(int32_t* keys, int32_t* places, const int32_t* index, GatherShape shape) {
  for (int64_t i = ThreadIndex(); i < shape.indices; i += ThreadCount()) {
    int64_t key = Resolve(index[i], shape);
    if (key < 0 || key >= shape.size) {
      // The forward kernel has reported an index out of range. Here it is only kept inside of dx.
      key = IsOfWhole(index[i], shape) ? shape.size : min(max(key, int64_t{0}), shape.size - 1);
    }
    keys[i] = static_cast<int32_t>(key);
    places[i] = static_cast<int32_t>(i);
  }
}

// Sorted places are added up in pieces, so that a frequent index (one of two segments of a text,
// say) does not wait for one block. A piece is the run of one key between two multiples of kPiece.
// If a key has one piece, its sum goes to dx. Otherwise the pieces' sums go to partial f32[outer,
// ceil(indices / kPiece), 2, inner]; entry 1 is for a piece that begins after a multiple.
constexpr int64_t kPiece = 64;

int64_t Pieces(const GatherShape& shape) { return CeilDiv(shape.indices, kPiece); }

__device__ float* PartialOf(float* partial, const GatherShape& shape, int64_t outer, int64_t piece,
                            int which) {
  const int64_t pieces = (shape.indices + kPiece - 1) / kPiece;
  return partial + ((outer * pieces + piece) * 2 + which) * shape.inner;
}

// Returns the sum of f(0) to f(n - 1), in this order. kUnroll loads are in flight at once.
template <typename F>
__device__ float SumInOrder(int64_t n, F f) {
  constexpr int kUnroll = 8;
  float sum = 0;
  int64_t i = 0;
  for (; i + kUnroll <= n; i += kUnroll) {
    float terms[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) terms[k] = f(i + k);
#pragma unroll
    for (float term : terms) sum += term;
  }
  for (; i < n; ++i) sum += f(i);
  return sum;
}

// Adds up the pieces. The grid has one block per sorted place and outer index. The block at the
// first place of a piece adds up the whole piece.
template <typename T>
__global__ void AddPieces(T* dx, float* partial, const T* dy, const int32_t* keys,
                          const int32_t* places, GatherShape shape) {
  for (int64_t i = blockIdx.x; i < shape.indices; i += gridDim.x) {
    const int32_t key = keys[i];
    if (key == shape.size) return;  // this key comes last, and dx does not have its slice
    const bool continues = i > 0 && keys[i - 1] == key;
    if (continues && i % kPiece != 0) continue;
    const int64_t limit = min((i / kPiece + 1) * kPiece, shape.indices);
    int64_t end = i + 1;
    while (end < limit && keys[end] == key) ++end;
    const bool goes_on = end == limit && end < shape.indices && keys[end] == key;
    for (int64_t outer = blockIdx.y; outer < shape.outer; outer += gridDim.y) {
      const T* from = dy + outer * shape.indices * shape.inner;
      float* part = PartialOf(partial, shape, outer, i / kPiece, i % kPiece == 0 ? 0 : 1);
      T* to = dx + (outer * shape.size + key) * shape.inner;
      for (int64_t c = threadIdx.x; c < shape.inner; c += kThreads) {
        const float sum = SumInOrder(
            end - i, [&](int64_t j) { return ToFloat(from[places[i + j] * shape.inner + c]); });
        if (continues || goes_on) {
          part[c] = sum;
        } else {
          to[c] = FromFloat<T>(sum);
        }
      }
    }
  }
}

// Has one block per multiple of kPiece, outer index and kThreads elements. The block at the first
// multiple that a key crosses adds up the key's pieces.
template <typename T>
__global__ void JoinPieces(T* dx, float* partial, const int32_t* keys, GatherShape shape) {
  const int64_t first_c = int64_t{blockIdx.z} * kThreads + threadIdx.x;
  for (int64_t piece = blockIdx.x + 1; piece * kPiece < shape.indices; piece += gridDim.x) {
    const int64_t at = piece * kPiece;
    const int32_t key = keys[at];
    if (keys[at - 1] != key) continue;  // no key crosses this multiple
    if (key == shape.size) return;
    // The key also crosses the previous multiple. The block there adds up the key, or leaves it to
    // an earlier block.
    if (piece > 1 && keys[at - kPiece] == key && keys[at - kPiece - 1] == key) continue;
    const int which = keys[at - kPiece] == key ? 0 : 1;
    int64_t last = piece;
    while ((last + 1) * kPiece < shape.indices && keys[(last + 1) * kPiece] == key) ++last;
    for (int64_t outer = blockIdx.y; outer < shape.outer; outer += gridDim.y) {
      for (int64_t c = first_c; c < shape.inner; c += int64_t{gridDim.z} * kThreads) {
        const float first = PartialOf(partial, shape, outer, piece - 1, which)[c];
        const float sum = first + SumInOrder(last - piece + 1, [&](int64_t j) {
                            return PartialOf(partial, shape, outer, piece + j, 0)[c];
                          });
        dx[(outer * shape.size + key) * shape.inner + c] = FromFloat<T>(sum);
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

// The workspace has the pairs to sort, then the sums of pieces if there are several.
int64_t GatherGradWorkspaceBytes(const GatherShape& shape) {
  const int64_t sums = Pieces(shape) > 1 ? 2 * shape.outer * Pieces(shape) * shape.inner : 0;
  return IndexSortWorkspaceBytes(shape.indices) + sums * static_cast<int64_t>(sizeof(float));
}

cudaError_t GatherGrad(void* dx, const void* dy, const int32_t* index, Type type,
                       const GatherShape& shape, void* workspace, cudaStream_t stream) {
  const int64_t n = shape.indices;
  const int64_t bytes = shape.outer * shape.size * shape.inner * Bytes(type);
  MUSTER_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(dx, 0, static_cast<size_t>(bytes), stream));
  IndexPairs pairs = PairsToSort(workspace, n);
  MUSTER_RETURN_IF_CUDA_ERROR(
      Launch(MakePairs, Strided(n), kThreads, 0, stream, pairs.keys, pairs.places, index, shape));
  const int64_t keys = shape.whole > 0 ? shape.size + 1 : shape.size;
  MUSTER_RETURN_IF_CUDA_ERROR(SortPairs(pairs, n, keys, workspace, stream));
  const auto blocks = static_cast<unsigned>(std::min(n, kBlocksMax));
  const auto outer = static_cast<unsigned>(std::min<int64_t>(shape.outer, 1024));
  auto* partial =
      reinterpret_cast<float*>(static_cast<std::byte*>(workspace) + IndexSortWorkspaceBytes(n));
  return ForFloating(type, [&](auto one) {
    using T = decltype(one);
    MUSTER_RETURN_IF_CUDA_ERROR(Launch(AddPieces<T>, dim3(blocks, outer), kThreads, 0, stream,
                                       static_cast<T*>(dx), partial, static_cast<const T*>(dy),
                                       pairs.keys, pairs.places, shape));
    if (Pieces(shape) == 1) return cudaSuccess;
    const dim3 grid(static_cast<unsigned>(std::min(Pieces(shape) - 1, kBlocksMax)), outer,
                    static_cast<unsigned>(std::min<int64_t>(CeilDiv(shape.inner, kThreads), 64)));
    return Launch(JoinPieces<T>, grid, kThreads, 0, stream, static_cast<T*>(dx), partial,
                  pairs.keys, shape);
  });
}

}  // namespace muster::kernels::cuda
