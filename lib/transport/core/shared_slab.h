// Memory that other processes of this host can map: what crosses a shared-memory link without a
// copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/transport/core/sealed_memory.h"

namespace muster {

// Zeroed pages of a sealed memory file, untouched until written, in huge pages where the kernel
// gives them (/sys/kernel/mm/transparent_hugepage/shmem_enabled: advise). Other processes that get
// the file can read it. Immutable but for its contents; freed with the last reference here and the
// last mapping elsewhere. Not inherited in any useful way by fork().
class SharedSlab {
 public:
  // RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED". bytes >= 0; 0 is an empty slab.
  static absl::StatusOr<std::shared_ptr<SharedSlab>> Allocate(int64_t bytes);
  SharedSlab(const SharedSlab&) = delete;
  SharedSlab& operator=(const SharedSlab&) = delete;
  ~SharedSlab();

  absl::Span<std::byte> memory() const { return sealed_.memory(); }
  int fd() const { return sealed_.file(); }  // -1 when empty

  // The slab of this process that holds all of `memory`; null if none does, or if `memory` is
  // empty. Any thread. Takes a lock: call it when memory is registered, not for every message.
  static std::shared_ptr<SharedSlab> Find(absl::Span<const std::byte> memory);

 private:
  explicit SharedSlab(SealedMemory sealed) : sealed_(std::move(sealed)) {}

  const SealedMemory sealed_;
};

}  // namespace muster
