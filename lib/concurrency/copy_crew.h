// Copies that one thread is too slow for.
#pragma once

#include <cstddef>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace muster {

// One processor moves some 8 to 12 GB/s, a machine's memory ten times as much. Large copies are
// made by several threads: parts of them go to whoever is free, so that the caller makes all of
// them where the others are not let run. Thread-compatible; its threads begin with the first large
// copy and ask for short slices.
class CopyCrew {
 public:
  // What is smaller is copied by the caller alone: to wake somebody takes as long.
  static constexpr size_t kLargeBytes = 512 << 10;

  // Where a copy goes. kPastCaches, to memory: what it overwrites is not fetched before, and
  // nothing leaves the caches for it. For what is read so much later that they would have lost it;
  // whoever reads it at once waits for memory. What is smaller than 64 KiB is cached all the same.
  enum class Stores { kCached, kPastCaches };

  // So many threads beside the caller; 0: it is alone.
  explicit CopyCrew(int helpers) : helpers_(helpers) {}
  ~CopyCrew();
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;

  // For a machine of so many processors: helpers for a quarter of them, three at most.
  static int HelpersFor(int cpus);

  // Of one size; they do not overlap. Everything is there when it returns.
  void Copy(absl::Span<std::byte> to, absl::Span<const std::byte> from,
            Stores stores = Stores::kCached);

  // Parts that helpers have copied so far. Any thread.
  size_t helped() const;

 private:
  // What several threads copy at once begins at a page each.
  static constexpr size_t kPartBytes = 128 << 10;
  // Stores past the caches are waited for at their end, which small copies are too short for.
  static constexpr size_t kPastCachesBytesMin = 64 << 10;

  void Help();
  // Copies parts until all are taken; how many.
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
  int copying_ ABSL_GUARDED_BY(mutex_) = 0;  // threads, each a part
  size_t helped_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace muster
