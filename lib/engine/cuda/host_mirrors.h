// Maps host memory to the device memory that mirrors it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cuda/type.h"
#include "lib/graph/tensor_parallel/placement.h"

namespace muster {

// Records host memory that is in use. It distinguishes a block from an earlier, freed block at the
// same address. Thread-safe.
class HostAllocations {
 public:
  // Requires: [begin, begin + bytes) overlaps no other block in use.
  void Add(const void* begin, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(const void* begin) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the number of the allocation that contains `address`: > 0 and never used again. Returns
  // 0 if no allocation contains it.
  int64_t NumberOf(const void* address) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Allocation {
    int64_t bytes = 0;
    int64_t number = 0;
  };

  mutable absl::Mutex mu_;
  std::map<uintptr_t, Allocation> in_use_ ABSL_GUARDED_BY(mu_);  // key: the start address
  int64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
};

// The mirrors of one device. A mirror is identified by address, slice, type, bytes and allocation,
// and exists as long as a pointer to it does. For host memory outside every allocation the first
// four alone identify it. Requires: such memory outlives its mirrors. Thread-compatible.
class HostMirrors {
 public:
  using Memory = std::shared_ptr<std::byte[]>;

  // Requires: `allocations` outlives this object.
  explicit HostMirrors(const HostAllocations* allocations) : allocations_(*allocations) {}

  // Returns null if there is no such mirror. `slice` is what the mirror has of the tensor at
  // `host`.
  Memory Find(const void* host, const ParameterSlice& slice, kernels::cuda::Type type,
              int64_t bytes) const;
  void Insert(const void* host, const ParameterSlice& slice, kernels::cuda::Type type,
              int64_t bytes, const Memory& memory);

 private:
  // Address, slice, type, bytes and allocation.
  using Key =
      std::tuple<const void*, std::array<int64_t, 4>, kernels::cuda::Type, int64_t, int64_t>;
  Key KeyOf(const void* host, const ParameterSlice& slice, kernels::cuda::Type type,
            int64_t bytes) const {
    return {host,
            {slice.offset, slice.runs, slice.run_elements, slice.stride},
            type,
            bytes,
            allocations_.NumberOf(host)};
  }

  const HostAllocations& allocations_;
  std::map<Key, std::weak_ptr<std::byte[]>> mirrors_;
};

}  // namespace muster
