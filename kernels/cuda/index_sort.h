// A stable sort of indices and the places that they come from: what has one index is then together,
// in the order in which it came, and one thread or block can sum it. Results repeat to the bit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace muster::kernels::cuda {

struct IndexPairs {
  int32_t* keys;
  int32_t* places;
};

// Of n pairs, four bytes aligned.
int64_t IndexSortWorkspaceBytes(int64_t n);

// Where in the workspace the caller writes the n pairs.
IndexPairs PairsToSort(void* workspace, int64_t n);

// Sorts the pairs of PairsToSort() by their keys, all in [0, size); then `pairs` are where they lie
// in the workspace. Asynchronous on `stream`; the launch error, if any, is returned. Reads and
// writes all pairs for every eight bits of size - 1: bandwidth-bound.
cudaError_t SortPairs(IndexPairs& pairs, int64_t n, int64_t size, void* workspace,
                      cudaStream_t stream);

}  // namespace muster::kernels::cuda
