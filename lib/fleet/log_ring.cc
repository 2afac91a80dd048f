#include "lib/fleet/log_ring.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

// Returns where the first line begins that starts at `at` or later.
size_t NextLine(absl::string_view text, size_t at) {
  if (at == 0 || text[at - 1] == '\n') return at;
  const size_t end = text.find('\n', at);
  return end == absl::string_view::npos ? at : end + 1;
}

}  // namespace

LogRing::LogRing(int64_t bytes_max) : bytes_max_(bytes_max) { google::AddLogSink(this); }

LogRing::~LogRing() { google::RemoveLogSink(this); }

void LogRing::send(google::LogSeverity severity, const char* /*full_filename*/,
                   const char* base_filename, int line, const google::LogMessageTime& time,
                   const char* message, size_t message_len) {
  Add(absl::StrCat(ToString(severity, base_filename, line, time, message, message_len), "\n"));
}

// Appends the line. Dropping half of the text at a time keeps the cost of a line at about one copy.
void LogRing::Add(absl::string_view line) {
  absl::MutexLock lock(&mu_);
  absl::StrAppend(&text_, line);
  if (static_cast<int64_t>(text_.size()) <= 2 * bytes_max_) return;
  const size_t forgotten = NextLine(text_, text_.size() - bytes_max_);
  begin_ += static_cast<int64_t>(forgotten);
  text_.erase(0, forgotten);
}

LogRing::Part LogRing::Read(std::optional<int64_t> offset, int64_t bytes_max) const {
  absl::MutexLock lock(&mu_);
  const auto size = static_cast<int64_t>(text_.size());
  const int64_t most = std::clamp<int64_t>(bytes_max, 0, bytes_max_);
  int64_t from = std::max<int64_t>(0, size - most);
  int64_t count = size - from;
  if (offset) {
    from = std::clamp<int64_t>(*offset - begin_, 0, size);
    count = std::min(size - from, most);
    // Cut at the end of the last whole line, if there is one.
    const size_t end = count == size - from
                           ? absl::string_view::npos
                           : absl::string_view(text_).rfind('\n', from + count - 1);
    if (end != absl::string_view::npos && static_cast<int64_t>(end) >= from) {
      count = static_cast<int64_t>(end) + 1 - from;
    }
  } else if (count > 0) {
    const auto line = static_cast<int64_t>(NextLine(text_, from));
    count -= line - from;
    from = line;
  }
  return {.offset = begin_ + from,
          .text = text_.substr(from, count),
          .next_offset = begin_ + from + count};
}

}  // namespace muster
