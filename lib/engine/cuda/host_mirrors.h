// Which device memory stands for which host memory.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cuda/type.h"

namespace muster {

// Host memory that is in use, so that a piece which was freed and given out again at the same
// address is told apart from the one before. Thread-safe.
class HostAllocations {
 public:
  // [begin, begin + bytes) overlaps no other that is in use.
  void Add(const void* begin, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(const void* begin) ABSL_LOCKS_EXCLUDED(mu_);

  // Of the allocation in which `address` lies: > 0, and never the same again. 0: in none.
  int64_t NumberOf(const void* address) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Allocation {
    int64_t bytes = 0;
    int64_t number = 0;
  };

  mutable absl::Mutex mu_;
  std::map<uintptr_t, Allocation> in_use_ ABSL_GUARDED_BY(mu_);  // by where they begin
  int64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
};

// The mirrors of one device. One is found by address, type, bytes and allocation, for as long as
// somebody holds it. Host memory that is in no allocation is told apart by the first three alone:
// it must outlive the mirrors made of it. Thread-compatible.
class HostMirrors {
 public:
  using Memory = std::shared_ptr<std::byte[]>;

  // `allocations` outlives it.
  explicit HostMirrors(const HostAllocations* allocations) : allocations_(*allocations) {}

  // Null when there is none.
  Memory Find(const void* host, kernels::cuda::Type type, int64_t bytes) const;
  void Insert(const void* host, kernels::cuda::Type type, int64_t bytes, const Memory& memory);

 private:
  struct Key {
    const void* host;
    kernels::cuda::Type type;
    int64_t bytes;
    int64_t allocation;
    auto operator<=>(const Key&) const = default;
  };
  Key KeyOf(const void* host, kernels::cuda::Type type, int64_t bytes) const {
    return {host, type, bytes, allocations_.NumberOf(host)};
  }

  const HostAllocations& allocations_;
  std::map<Key, std::weak_ptr<std::byte[]>> mirrors_;
};

}  // namespace muster
