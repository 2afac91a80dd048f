// The slabs from which a shared-memory transport may lend payloads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "lib/transport/core/shared_slab.h"

namespace muster {

// Finds slabs by address and by number. There are few slabs, and each message looks one up.
// Thread-compatible. Empty slabs cannot be registered.
class RegisteredSlabs {
 public:
  struct Slab {
    std::shared_ptr<SharedSlab> slab;
    uint32_t number = 0;    // from 1, never reused: peers identify the slab by it
    int registrations = 0;  // those that have not ended
  };

  size_t size() const { return slabs_.size(); }
  // Returns the slab that contains all of `payload`; null if none does. Valid until the next
  // Register() or Unregister().
  const Slab* Holding(absl::Span<const std::byte> payload) const;
  // Returns the slab with this number; null if it is no longer registered.
  const Slab* Numbered(uint32_t number) const;

  // Adds one registration and returns the slab's number. The number stays the same as long as the
  // slab is registered.
  uint32_t Register(const std::shared_ptr<SharedSlab>& slab);
  // Ends one registration.
  void Unregister(uint32_t number);

  // TakeWithdrawn() returns whether peers must be told that a slab is gone, and clears that.
  // Remind() sets it again, for example if some peer could not be told.
  bool TakeWithdrawn() { return std::exchange(withdrawn_, false); }
  void Remind() { withdrawn_ = true; }

 private:
  std::vector<Slab> slabs_;  // sorted by address
  uint32_t made_ = 0;
  bool withdrawn_ = false;
};

}  // namespace muster
