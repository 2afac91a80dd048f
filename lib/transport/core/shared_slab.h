// Memory that other processes of this host can map, so that it crosses a shared-memory link without
// a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/transport/core/sealed_memory.h"

namespace muster {

// Zeroed pages of a sealed memory file. They take no memory until they are written. They are huge
// pages if the kernel provides them (/sys/kernel/mm/transparent_hugepage/shmem_enabled: advise).
//
// A process that receives the file can read the pages, and with Others::kWrite write to them. The
// slab is immutable except for its contents. The memory is freed when the last reference in this
// process and the last mapping and descriptor in others are gone. Not usable after fork().
class SharedSlab {
 public:
  // `others` is the access that processes get with the file. Returns RESOURCE_EXHAUSTED with reason
  // "MEMORY_EXHAUSTED" if there is no memory. Requires: bytes >= 0. 0 makes an empty slab.
  static absl::StatusOr<std::shared_ptr<SharedSlab>> Allocate(
      int64_t bytes, SealedMemory::Others others = SealedMemory::Others::kRead);
  SharedSlab(const SharedSlab&) = delete;
  SharedSlab& operator=(const SharedSlab&) = delete;
  ~SharedSlab();

  absl::Span<std::byte> memory() const { return sealed_.memory(); }
  int fd() const { return sealed_.file(); }  // -1 if the slab is empty

  // Returns the slab of this process that contains all of `memory`; null if there is none or
  // `memory` is empty. Thread-safe. Takes a lock: call it when registering memory, not for each
  // message.
  static std::shared_ptr<SharedSlab> Find(absl::Span<const std::byte> memory);

 private:
  explicit SharedSlab(SealedMemory sealed) : sealed_(std::move(sealed)) {}

  const SealedMemory sealed_;
};

}  // namespace muster
