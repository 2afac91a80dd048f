// Another process's slab, mapped for as long as anybody needs it.
#pragma once

#include <cstddef>
#include <utility>

#include "absl/types/span.h"
#include "lib/transport/core/sealed_memory.h"

namespace muster {

// A shared handle, empty or not. All handles of one slab belong to one thread, so they are counted
// in an ordinary integer: an atomic one has the processor write out all its pending stores first,
// those to cache lines that the other process holds among them, and every payload that is lent
// counts twice.
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

  // Of a handle that is not empty.
  absl::Span<std::byte> memory() const { return slab_->memory.memory(); }

 private:
  struct Slab {
    SealedMemory memory;
    int handles = 1;
  };

  Slab* slab_ = nullptr;
};

}  // namespace muster
