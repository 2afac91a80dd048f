#include "kernels/cuda/index_sort.h"
#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {
namespace {

// A radix sort, kDigitBits at a time. A warp takes a chunk of neighbouring pairs, 32 at a time, in
// order.
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int64_t kChunk = 1024;

// Sets counts[digit][chunk] to the number of keys in the chunk that have the digit.
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

// Replaces each count by the sum of those before it. Runs in one block.
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
    // Lanes without a pair share a digit that no pair has.
    const int digit = is_pair ? key >> shift & (kDigits - 1) : kDigits;
    const unsigned alike = __match_any_sync(kEveryLane, digit);
    const int before = __popc(alike & ((1u << threadIdx.x) - 1));
    int32_t to = 0;
    if (is_pair) to = next[digit] + before;
    __syncwarp();  // every lane has read next[] before the first lane of a digit advances it
    if (is_pair && before == 0) next[digit] += __popc(alike);
    __syncwarp();
    if (is_pair) {
      to_keys[to] = key;
      to_places[to] = places[i];
    }
  }
}

int64_t Chunks(int64_t n) { return CeilDiv(n, kChunk); }

}  // namespace

// The workspace has two arrays of pairs, and the counts.
int64_t IndexSortWorkspaceBytes(int64_t n) {
  return (4 * n + kDigits * Chunks(n)) * static_cast<int64_t>(sizeof(int32_t));
}

IndexPairs PairsToSort(void* workspace, int64_t n) {
  auto* keys = static_cast<int32_t*>(workspace);
  return {keys, keys + n};
}

cudaError_t SortPairs(IndexPairs& pairs, int64_t n, int64_t size, void* workspace,
                      cudaStream_t stream) {
  pairs = PairsToSort(workspace, n);
  IndexPairs other = {pairs.places + n, pairs.places + 2 * n};
  int32_t* counts = other.places + n;
  const auto chunks = static_cast<unsigned>(Chunks(n));
  for (int shift = 0; shift < 31 && (size - 1) >> shift > 0; shift += kDigitBits) {
    MUSTER_RETURN_IF_CUDA_ERROR(
        Launch(CountDigits, chunks, kWarp, 0, stream, counts, pairs.keys, n, shift));
    MUSTER_RETURN_IF_CUDA_ERROR(
        Launch(SumBefore, 1, kThreads, 0, stream, counts, kDigits * Chunks(n)));
    MUSTER_RETURN_IF_CUDA_ERROR(Launch(MovePairs, chunks, kWarp, 0, stream, other.keys,
                                       other.places, pairs.keys, pairs.places, counts, n, shift));
    std::swap(pairs, other);
  }
  return cudaSuccess;
}

}  // namespace muster::kernels::cuda
