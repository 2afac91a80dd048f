#include "lib/transport/core/registered_slabs.h"

#include <glog/logging.h>

#include <algorithm>
#include <iterator>

namespace muster {

const RegisteredSlabs::Slab* RegisteredSlabs::Holding(absl::Span<const std::byte> payload) const {
  auto after = std::upper_bound(
      slabs_.begin(), slabs_.end(), payload.data(),
      [](const std::byte* at, const Slab& s) { return at < s.slab->memory().data(); });
  if (after == slabs_.begin()) return nullptr;
  const Slab& found = *std::prev(after);
  const absl::Span<const std::byte> memory = found.slab->memory();
  const size_t offset = payload.data() - memory.data();
  return offset < memory.size() && payload.size() <= memory.size() - offset ? &found : nullptr;
}

const RegisteredSlabs::Slab* RegisteredSlabs::Numbered(uint32_t number) const {
  auto found = std::ranges::find(slabs_, number, &Slab::number);
  return found == slabs_.end() ? nullptr : &*found;
}

uint32_t RegisteredSlabs::Register(const std::shared_ptr<SharedSlab>& slab) {
  CHECK(!slab->memory().empty());
  auto at = std::lower_bound(
      slabs_.begin(), slabs_.end(), slab->memory().data(),
      [](const Slab& s, const std::byte* first) { return s.slab->memory().data() < first; });
  if (at == slabs_.end() || at->slab != slab) at = slabs_.insert(at, {slab, ++made_});
  ++at->registrations;
  return at->number;
}

void RegisteredSlabs::Unregister(uint32_t number) {
  auto found = std::ranges::find(slabs_, number, &Slab::number);
  CHECK(found != slabs_.end()) << "slab " << number;
  if (--found->registrations > 0) return;
  slabs_.erase(found);
  withdrawn_ = true;
}

}  // namespace muster
