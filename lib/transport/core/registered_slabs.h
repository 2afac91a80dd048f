// The slabs that a shared-memory transport may lend payloads from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "lib/transport/core/shared_slab.h"

namespace muster {

// Slabs by address and by number. Few, looked up for every message. Thread-compatible. Empty slabs
// cannot be registered.
class RegisteredSlabs {
 public:
  struct Slab {
    std::shared_ptr<SharedSlab> slab;
    uint32_t number = 0;    // from 1, never reused: peers know it by this
    int registrations = 0;  // not yet taken back
  };

  size_t size() const { return slabs_.size(); }
  // The slab that holds all of `payload`; null if none does. Valid until the next registration or
  // the end of one.
  const Slab* Holding(absl::Span<const std::byte> payload) const;
  // Null: not registered any more.
  const Slab* Numbered(uint32_t number) const;

  // Once more; a slab has one number as long as it is registered. Returns it.
  uint32_t Register(const std::shared_ptr<SharedSlab>& slab);
  // Takes back one registration.
  void Unregister(uint32_t number);

  // Peers may know a slab that is no more. Remind() says so again, where they could not be told.
  bool TakeWithdrawn() { return std::exchange(withdrawn_, false); }
  void Remind() { withdrawn_ = true; }

 private:
  std::vector<Slab> slabs_;  // by address
  uint32_t made_ = 0;
  bool withdrawn_ = false;
};

}  // namespace muster
