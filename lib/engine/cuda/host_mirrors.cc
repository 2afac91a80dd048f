#include "lib/engine/cuda/host_mirrors.h"

#include <iterator>
#include <utility>

#include "glog/logging.h"

namespace muster {

void HostAllocations::Add(const void* begin, int64_t bytes) {
  absl::MutexLock lock(&mu_);
  const auto [at, is_new] = in_use_.try_emplace(reinterpret_cast<uintptr_t>(begin));
  CHECK(is_new) << begin << " is in use";
  at->second = {.bytes = bytes, .number = ++last_number_};
}

void HostAllocations::Remove(const void* begin) {
  absl::MutexLock lock(&mu_);
  in_use_.erase(reinterpret_cast<uintptr_t>(begin));
}

int64_t HostAllocations::NumberOf(const void* address) const {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  absl::MutexLock lock(&mu_);
  const auto behind = in_use_.upper_bound(wanted);
  if (behind == in_use_.begin()) return 0;
  const auto& [begin, allocation] = *std::prev(behind);
  return wanted - begin < static_cast<uintptr_t>(allocation.bytes) ? allocation.number : 0;
}

HostMirrors::Memory HostMirrors::Find(const void* host, const ParameterSlice& slice,
                                      kernels::cuda::Type type, int64_t bytes) const {
  const auto mirror = mirrors_.find(KeyOf(host, slice, type, bytes));
  return mirror == mirrors_.end() ? nullptr : mirror->second.lock();
}

void HostMirrors::Insert(const void* host, const ParameterSlice& slice, kernels::cuda::Type type,
                         int64_t bytes, const Memory& memory) {
  std::erase_if(mirrors_, [](const auto& mirror) { return mirror.second.expired(); });
  mirrors_[KeyOf(host, slice, type, bytes)] = memory;
}

}  // namespace muster
