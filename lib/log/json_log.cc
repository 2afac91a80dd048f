#include "lib/log/json_log.h"

#include <errno.h>
#include <execinfo.h>
#include <glog/logging.h>
#include <grpc/support/log.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/debugging/symbolize.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/status/utf8.h"

namespace muster {
namespace {

constexpr int kFramesMax = 64;
constexpr int kFramesOfLogMax = 12;  // frames between the logging line and the sink

std::atomic<bool> writes_json = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal's handler reads it");

// "2026-11-29T02:12:07.399756Z".
struct TimeText {
  char text[28];
};

// Neither locks nor allocates, unlike absl::FormatTime() and gmtime_r(): signal handlers call it.
TimeText FormatUtc(const timespec& time) {
  using std::chrono::days;
  using std::chrono::floor;
  const std::chrono::sys_seconds seconds{std::chrono::seconds(time.tv_sec)};
  const std::chrono::year_month_day date{floor<days>(seconds)};
  const std::chrono::hh_mm_ss clock{seconds - floor<days>(seconds)};
  TimeText result{"0000-00-00T00:00:00.000000Z"};
  const auto put = [&result](int64_t number, int last, int digits) {
    for (int i = 0; i < digits; ++i, number /= 10) {
      result.text[last - i] = static_cast<char>('0' + number % 10);
    }
  };
  put(static_cast<int>(date.year()), 3, 4);
  put(static_cast<unsigned>(date.month()), 6, 2);
  put(static_cast<unsigned>(date.day()), 9, 2);
  put(clock.hours().count(), 12, 2);
  put(clock.minutes().count(), 15, 2);
  put(clock.seconds().count(), 18, 2);
  put(time.tv_nsec / 1000, 25, 6);
  return result;
}

void WriteAll(absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // there is no other place to report it
    text.remove_prefix(written);
  }
}

void AppendString(absl::string_view text, std::string& json) {
  json += '"';
  for (const char c : ValidUtf8(text)) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (c == '\n') {
      json += "\\n";
    } else if (c == '\t') {
      json += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&json, "\\u%04x", c);
    } else {
      json += c;
    }
  }
  json += '"';
}

void AppendField(absl::string_view name, absl::string_view value, std::string& json) {
  if (value.empty()) return;
  absl::StrAppend(&json, ", \"", name, "\": ");
  AppendString(value, json);
}

// Returns the stack of the calling thread, starting at the function that logs.
std::vector<std::string> StackOfTheLine() {
  void* addresses[kFramesMax];
  const int count = backtrace(addresses, kFramesMax);
  std::vector<std::string> frames;
  size_t begin = 0;
  for (int i = 0; i < count; ++i) {
    char name[1024];
    // The call instruction precedes the return address.
    const bool is_known = absl::Symbolize(static_cast<char*>(addresses[i]) - 1, name, sizeof(name));
    const bool is_of_log = i < kFramesOfLogMax && is_known && absl::StartsWith(name, "google::");
    frames.push_back(absl::StrCat(absl::Hex(addresses[i], absl::kZeroPad16), " ",
                                  is_known ? name : "(unknown)"));
    if (is_of_log) begin = frames.size();
  }
  frames.erase(frames.begin(), frames.begin() + static_cast<std::ptrdiff_t>(begin));
  return frames;
}

class JsonSink final : public google::LogSink {
 private:
  // glog calls it under its own lock, so lines are not interleaved.
  void send(google::LogSeverity severity, const char* full_filename, const char* /*base_filename*/,
            int line, const google::LogMessageTime& time, const char* message,
            size_t message_len) override {
    const bool is_fatal = severity == google::GLOG_FATAL;
    WriteAll(ToJson({.time = {.tv_sec = time.timestamp(), .tv_nsec = int64_t{time.usec()} * 1000},
                     .severity = google::GetLogSeverityName(severity),
                     .file = full_filename,
                     .line = line,
                     .fields = LogScope::Current(),
                     .message = {message, message_len},
                     .stack = is_fatal ? StackOfTheLine() : std::vector<std::string>()}));
    if (is_fatal) ending_ = true;
  }
  // glog calls it after every line. After a fatal line glog would write the stack as text next.
  void WaitTillSent() override {
    if (ending_) std::abort();
  }

  static thread_local bool ending_;  // this thread has logged a fatal line
};

thread_local bool JsonSink::ending_ = false;

void LogForGrpc(gpr_log_func_args* args) {
  const google::LogSeverity severity =
      args->severity == GPR_LOG_SEVERITY_ERROR ? google::GLOG_ERROR : google::GLOG_INFO;
  google::LogMessage(args->file, args->line, severity).stream() << args->message;
}

}  // namespace

bool AbslParseFlag(absl::string_view text, LogFormat* format, std::string* error) {
  if (text != "text" && text != "json") {
    *error = "it must be text or json";
    return false;
  }
  *format = text == "json" ? LogFormat::kJson : LogFormat::kText;
  return true;
}

std::string AbslUnparseFlag(LogFormat format) {
  return format == LogFormat::kJson ? "json" : "text";
}

std::string ToJson(const LogLine& line) {
  std::string json = absl::StrCat("{\"time\": \"", FormatUtc(line.time).text, "\"");
  AppendField("severity", line.severity, json);
  AppendField("source", absl::StrCat(line.file, ":", line.line), json);
  AppendField("member", line.fields.member, json);
  AppendField("job", line.fields.job, json);
  if (line.fields.generation != 0) {
    absl::StrAppend(&json, ", \"generation\": ", line.fields.generation);
  }
  AppendField("method", line.fields.method, json);
  AppendField("resource", line.fields.resource, json);
  AppendField("caller", line.fields.caller, json);
  AppendField("address", line.fields.address, json);
  AppendField("result", line.fields.result, json);
  json += ", \"message\": ";
  AppendString(line.message, json);
  for (size_t i = 0; i < line.stack.size(); ++i) {
    json += i == 0 ? ", \"stack\": [" : ", ";
    AppendString(line.stack[i], json);
  }
  json += line.stack.empty() ? "}\n" : "]}\n";
  return json;
}

void SetLogFormat(LogFormat format, const char* program) {
  if (format == LogFormat::kText) return;
  absl::InitializeSymbolizer(program);
  static JsonSink& sink = *new JsonSink;  // never destroyed: threads log while the process ends
  google::AddLogSink(&sink);
  // glog itself must write nothing, neither to stderr nor to files.
  for (int severity = 0; severity < google::NUM_SEVERITIES; ++severity) {
    google::SetLogDestination(severity, "");
  }
  FLAGS_logtostderr = false;
  FLAGS_stderrthreshold = google::NUM_SEVERITIES;
  gpr_set_log_function(LogForGrpc);
  writes_json = true;
}

void LogInSignalHandler(absl::string_view message) {
  // Uses one write(), so that no other thread's line comes in between, and no heap memory.
  char line[256];
  size_t size = 0;
  const auto append = [&](absl::string_view text) {
    const size_t part = std::min(text.size(), sizeof(line) - size);
    std::memcpy(line + size, text.data(), part);
    size += part;
  };
  if (writes_json) {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    append("{\"time\": \"");
    append(absl::string_view(FormatUtc(now).text, sizeof(TimeText::text) - 1));
    append("\", \"severity\": \"INFO\", \"message\": \"");
    append(message);
    append("\"}\n");
  } else {
    append(message);
    append("\n");
  }
  WriteAll(absl::string_view(line, size));
}

}  // namespace muster
