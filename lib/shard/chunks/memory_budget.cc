#include "lib/shard/chunks/memory_budget.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/concurrency/cpu_quota.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/status/status.h"
#include "lib/text/byte_size.h"

namespace muster {
namespace {

constexpr size_t kHugePageBytes = 2 << 20;

absl::Status Exhausted(std::string message) {
  return WithReason(absl::ResourceExhaustedError(message), "MEMORY_EXHAUSTED");
}

}  // namespace

int64_t DefaultMemoryBytes(const std::string& root) {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  for (const CgroupFolder& group : CgroupFolders("memory", root)) {
    const char* name = group.version == 2 ? "/memory.max" : "/memory.limit_in_bytes";
    int64_t limit = 0;
    if (std::ifstream(group.path + name) >> limit) bytes = std::min(bytes, limit);
  }
  return bytes / 2;
}

MemoryBudget::Reservation::~Reservation() {
  absl::MutexLock lock(&budget_->mu_);
  budget_->used_ -= bytes_;
  if (retired_) budget_->retiring_ -= bytes_;
}

void MemoryBudget::Reservation::Retire() {
  absl::MutexLock lock(&budget_->mu_);
  if (!retired_) budget_->retiring_ += bytes_;
  retired_ = true;
}

absl::StatusOr<std::shared_ptr<MemoryBudget::Reservation>> MemoryBudget::Reserve(
    int64_t bytes, absl::Duration patience, absl::Duration unannounced,
    const std::stop_token& stop) {
  // Locking the mutex makes the waits below check their conditions again. The destructor of a
  // stop_callback waits for a running call, which needs the mutex. So `wake` is declared before
  // `lock` and destroyed after it.
  const std::stop_callback wake(stop, [this] { absl::MutexLock lock(&mu_); });
  absl::MutexLock lock(&mu_);
  auto granted = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stop.stop_requested() || used_ + bytes <= capacity_;
  };
  auto decided = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return granted() || used_ - retiring_ + bytes > capacity_;
  };
  // A holder may not know yet that it must give its memory back; `unannounced` allows for that. The
  // second wait ends early if even all retired reservations would not free enough.
  if (bytes <= capacity_) AwaitFor(&mu_, absl::Condition(&granted), unannounced);
  AwaitFor(&mu_, absl::Condition(&decided), patience);
  if (stop.stop_requested()) return absl::CancelledError("stopped while waiting for memory");
  if (used_ + bytes > capacity_) {
    return Exhausted(absl::StrCat("the shards need ", FormatBytes(bytes), "; the budget of ",
                                  FormatBytes(capacity_), " (--memory_bytes) has ",
                                  FormatBytes(capacity_ - used_), " left"));
  }
  used_ += bytes;
  return std::make_shared<Reservation>(this, bytes);
}

int64_t MemoryBudget::used_bytes() const {
  absl::MutexLock lock(&mu_);
  return used_;
}

absl::StatusOr<std::shared_ptr<Slab>> Slab::Allocate(
    int64_t bytes, std::shared_ptr<MemoryBudget::Reservation> reservation) {
  if (bytes == 0) {
    return absl::WrapUnique(new Slab(absl::Span<std::byte>(), std::move(reservation)));
  }
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, 0);
  if (memory == MAP_FAILED) {
    return Exhausted(absl::StrCat("cannot map ", bytes, " bytes: ", std::strerror(errno)));
  }
  if (bytes >= kHugePageBytes) madvise(memory, bytes, MADV_HUGEPAGE);
  return absl::WrapUnique(new Slab({static_cast<std::byte*>(memory), static_cast<size_t>(bytes)},
                                   std::move(reservation)));
}

Slab::~Slab() {
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
}

}  // namespace muster
