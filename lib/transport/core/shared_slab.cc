#include "lib/transport/core/shared_slab.h"

#include <glog/logging.h>

#include <functional>
#include <iterator>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/memory/memory.h"
#include "absl/synchronization/mutex.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// All slabs of this process, keyed by their first byte.
class SlabTable {
 public:
  void Insert(const std::shared_ptr<SharedSlab>& slab) {
    absl::MutexLock lock(&mu_);
    slabs_.emplace(slab->memory().data(), slab);
  }

  void Erase(const std::byte* first) {
    absl::MutexLock lock(&mu_);
    slabs_.erase(first);
  }

  std::shared_ptr<SharedSlab> Find(absl::Span<const std::byte> memory) {
    // Declared before the lock: destroying the last reference takes the lock.
    std::shared_ptr<SharedSlab> slab;
    absl::MutexLock lock(&mu_);
    auto after = slabs_.upper_bound(memory.data());
    if (after == slabs_.begin()) return nullptr;
    slab = std::prev(after)->second.lock();
    if (slab == nullptr) return nullptr;  // it is being destroyed
    const size_t offset = memory.data() - slab->memory().data();
    const size_t size = slab->memory().size();
    if (offset >= size || memory.size() > size - offset) return nullptr;
    return slab;
  }

 private:
  absl::Mutex mu_;
  std::map<const std::byte*, std::weak_ptr<SharedSlab>, std::less<>> slabs_ ABSL_GUARDED_BY(mu_);
};

SlabTable& Table() {
  static auto& table = *new SlabTable;  // never destroyed, because slabs may outlive main()
  return table;
}

}  // namespace

absl::StatusOr<std::shared_ptr<SharedSlab>> SharedSlab::Allocate(int64_t bytes,
                                                                 SealedMemory::Others others) {
  CHECK_GE(bytes, 0);
  if (bytes == 0) return absl::WrapUnique(new SharedSlab(SealedMemory()));
  ASSIGN_OR_RETURN(SealedMemory sealed, SealedMemory::Create("muster-slab", bytes, others));
  std::shared_ptr<SharedSlab> slab = absl::WrapUnique(new SharedSlab(std::move(sealed)));
  Table().Insert(slab);
  return slab;
}

// The slab leaves the table before its addresses are unmapped, because the next slab may get them.
SharedSlab::~SharedSlab() {
  if (!memory().empty()) Table().Erase(memory().data());
}

std::shared_ptr<SharedSlab> SharedSlab::Find(absl::Span<const std::byte> memory) {
  return memory.empty() ? nullptr : Table().Find(memory);
}

}  // namespace muster
