// Copies large buffers with several threads.
#pragma once

#include <cstddef>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace muster {

// One processor moves some 8 to 12 GB/s, a machine's memory ten times as much, so several threads
// share a large copy. Parts go to whichever thread is free; if no helper gets to run, the caller
// copies all of them. Thread-compatible. The threads start with the first large copy, and ask for
// short slices.
class CopyCrew {
 public:
  // The caller copies smaller buffers alone: waking a helper would take as long.
  static constexpr size_t kLargeBytes = 512 << 10;

  // How a copy is stored. kPastCaches writes to memory without first fetching the overwritten lines
  // or evicting others from the caches. Use it for data that is read much later; a reader that
  // comes at once waits for memory. Copies below 64 KiB are cached anyway.
  enum class Stores { kCached, kPastCaches };

  // Uses `helpers` threads besides the caller; 0: none.
  explicit CopyCrew(int helpers) : helpers_(helpers) {}
  ~CopyCrew();
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;

  // Returns the number of helpers for a machine of `cpus` processors: a quarter of them, at most
  // three.
  static int HelpersFor(int cpus);

  // Copies `from` to `to`, which must have the same size and not overlap. The copy is complete when
  // it returns.
  void Copy(absl::Span<std::byte> to, absl::Span<const std::byte> from,
            Stores stores = Stores::kCached);

  // Returns the number of parts that helpers have copied so far. May be called on any thread.
  size_t helped() const;

 private:
  // The size of a part, a multiple of the page size.
  static constexpr size_t kPartBytes = 128 << 10;
  // A copy past the caches waits for its stores at the end, which does not pay for small copies.
  static constexpr size_t kPastCachesBytesMin = 64 << 10;

  void Help();
  // Copies parts until all are taken. Returns how many it copied.
  size_t CopyParts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasPartsOrEnds() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return ends_ || next_ < from_.size();
  }
  bool IsWhole() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return copying_ == 0; }

  const int helpers_;
  std::vector<std::thread> threads_;

  mutable absl::Mutex mutex_;
  absl::Span<std::byte> to_ ABSL_GUARDED_BY(mutex_);
  absl::Span<const std::byte> from_ ABSL_GUARDED_BY(mutex_);
  Stores stores_ ABSL_GUARDED_BY(mutex_) = Stores::kCached;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;  // the first byte of the next part
  int copying_ ABSL_GUARDED_BY(mutex_) = 0;  // number of threads that are copying a part
  size_t helped_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace muster
