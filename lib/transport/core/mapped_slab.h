// A slab of another process, mapped until its last handle is destroyed.
#pragma once

#include <cstddef>
#include <utility>

#include "absl/types/span.h"
#include "lib/transport/core/sealed_memory.h"

namespace muster {

// A shared handle, possibly empty. All handles of one slab belong to one thread, so the count is a
// plain integer. An atomic count would make the processor finish all its pending stores first, also
// stores to cache lines that the other process holds. Every lent payload changes the count twice.
class MappedSlab {
 public:
  MappedSlab() = default;
  explicit MappedSlab(SealedMemory memory) : slab_(new Slab{std::move(memory)}) {}
  MappedSlab(const MappedSlab& other) : slab_(other.slab_) {
    if (slab_ != nullptr) ++slab_->handles;
  }
  MappedSlab(MappedSlab&& other) noexcept : slab_(std::exchange(other.slab_, nullptr)) {}
  MappedSlab& operator=(MappedSlab other) noexcept {
    std::swap(slab_, other.slab_);
    return *this;
  }
  ~MappedSlab() {
    if (slab_ != nullptr && --slab_->handles == 0) delete slab_;
  }

  // Requires: the handle is not empty.
  absl::Span<std::byte> memory() const { return slab_->memory.memory(); }

 private:
  struct Slab {
    SealedMemory memory;
    int handles = 1;
  };

  Slab* slab_ = nullptr;
};

}  // namespace muster
