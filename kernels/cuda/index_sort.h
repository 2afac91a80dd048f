// A stable sort of indices together with their places. Entries of one index become neighbours in
// their original order, so that one thread or block can sum them. Results are bit-identical between
// runs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace muster::kernels::cuda {

struct IndexPairs {
  int32_t* keys;
  int32_t* places;
};

// Workspace for n pairs, aligned to four bytes.
int64_t IndexSortWorkspaceBytes(int64_t n);

// Returns where in the workspace the caller must write the n pairs.
IndexPairs PairsToSort(void* workspace, int64_t n);

// Sorts the pairs at PairsToSort() by their keys, which must be in [0, size), and sets `pairs` to
// where they are in the workspace. Asynchronous on `stream`. Returns the launch error, if any.
// Reads and writes all pairs once per eight bits of size - 1: bandwidth-bound.
cudaError_t SortPairs(IndexPairs& pairs, int64_t n, int64_t size, void* workspace,
                      cudaStream_t stream);

}  // namespace muster::kernels::cuda
