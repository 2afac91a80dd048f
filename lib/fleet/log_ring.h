// Keeps the last part of this process's log, for clients that cannot read its files.
#pragma once

#include <glog/logging.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "lib/limits/limits.h"

namespace muster {

// Collects every line that glog writes while it exists, in at most twice `bytes_max` of memory.
// Thread-safe. Tokens and keys must never be logged: every line can be read remotely.
class LogRing final : private google::LogSink {
 public:
  explicit LogRing(int64_t bytes_max = limits::kMemberLogBytesMax);
  ~LogRing() override;

  struct Part {
    int64_t offset = 0;  // position of the first byte in all that was ever logged
    std::string text;    // whole lines, except a line longer than `bytes_max`
    int64_t next_offset = 0;
  };
  // Returns what was logged from `offset` on, at most `bytes_max`. If that is already forgotten,
  // starts at the first line that is kept. Without an offset, returns the last lines that fit.
  Part Read(std::optional<int64_t> offset, int64_t bytes_max) const ABSL_LOCKS_EXCLUDED(mu_);

  // Adds a line as if it were logged. For tests.
  void Add(absl::string_view line) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void send(google::LogSeverity severity, const char* full_filename, const char* base_filename,
            int line, const google::LogMessageTime& time, const char* message,
            size_t message_len) override;

  const int64_t bytes_max_;
  mutable absl::Mutex mu_;
  std::string text_ ABSL_GUARDED_BY(mu_);
  int64_t begin_ ABSL_GUARDED_BY(mu_) = 0;  // the offset of text_'s first byte
};

}  // namespace muster
