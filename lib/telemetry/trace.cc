#include "lib/telemetry/trace.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"

namespace muster {
namespace {

// Chrome counts in microseconds.
std::string Microseconds(int64_t nanoseconds) {
  return absl::StrFormat("%.3f", static_cast<double>(nanoseconds) / 1000);
}

std::string ArgumentsText(const TraceArguments& arguments) {
  std::vector<std::string> parts;
  for (const TraceArgument& argument : arguments) {
    if (argument.name == nullptr) break;
    parts.push_back(absl::StrCat("\"", argument.name, "\":", argument.value));
  }
  return absl::StrJoin(parts, ",");
}

// Of what others name: members, devices.
std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) >= ' ') quoted += c;
  }
  return quoted + "\"";
}

}  // namespace

struct Trace::Event {
  std::atomic<Kind> kind = Kind::kNone;  // written last
  int track = 0;
  const char* name = nullptr;
  const char* what = nullptr;  // of a mark
  int64_t time = 0;
  int64_t length_or_id = 0;
  TraceArguments arguments;
};

absl::StatusOr<std::unique_ptr<Trace>> Trace::Create(std::string path, int64_t events_max) {
  auto trace = absl::WrapUnique(new Trace(std::move(path), events_max));
  absl::Status written = trace->Write();
  if (!written.ok()) return written;
  return trace;
}

Trace::Trace(std::string path, int64_t events_max)
    : path_(std::move(path)),
      origin_(Now()),
      events_max_(events_max),
      events_(new Event[static_cast<size_t>(events_max)]) {}

Trace::~Trace() {
  const absl::Status written = Write();
  LOG_IF(WARNING, !written.ok()) << written.message();
}

int64_t Trace::Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Trace::Record(Kind kind, int track, const char* name, const char* what, int64_t time,
                   int64_t length_or_id, const TraceArguments& arguments) {
  const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
  if (index >= events_max_) return;
  Event& event = events_[index];
  event.track = track;
  event.name = name;
  event.what = what;
  event.time = time;
  event.length_or_id = length_or_id;
  event.arguments = arguments;
  event.kind.store(kind, std::memory_order_release);
}

void Trace::Span(int track, const char* name, int64_t begin, int64_t end,
                 const TraceArguments& arguments) {
  Record(Kind::kSpan, track, name, nullptr, begin, end - begin, arguments);
}

void Trace::Begin(int track, const char* name, int64_t id, const TraceArguments& arguments) {
  Record(Kind::kBegin, track, name, nullptr, Now(), id, arguments);
}

void Trace::Mark(int track, const char* name, const char* what, int64_t id,
                 const TraceArguments& arguments) {
  Record(Kind::kMark, track, name, what, Now(), id, arguments);
}

void Trace::End(int track, const char* name, int64_t id, const TraceArguments& arguments) {
  Record(Kind::kEnd, track, name, nullptr, Now(), id, arguments);
}

void Trace::NameTrack(int track, std::string name) {
  absl::MutexLock lock(&mu_);
  tracks_[track] = std::move(name);
}

int64_t Trace::dropped() const {
  return std::max<int64_t>(0, next_.load(std::memory_order_relaxed) - events_max_);
}

void Trace::AppendTo(std::string& json, const Event& event, int64_t origin) {
  const Kind kind = event.kind.load(std::memory_order_acquire);
  if (kind == Kind::kNone) return;  // being recorded
  const absl::string_view phase = kind == Kind::kSpan    ? "X"
                                  : kind == Kind::kBegin ? "b"
                                  : kind == Kind::kMark  ? "n"
                                                         : "e";
  absl::StrAppend(&json, ",\n{\"ph\":\"", phase, "\",\"pid\":1,\"tid\":", event.track,
                  ",\"ts\":", Microseconds(event.time - origin));
  if (kind == Kind::kSpan) {
    absl::StrAppend(&json, ",\"name\":\"", event.name,
                    "\",\"dur\":", Microseconds(event.length_or_id));
  } else {
    absl::StrAppend(&json, ",\"name\":\"", kind == Kind::kMark ? event.what : event.name,
                    "\",\"cat\":\"", event.name, "\",\"id\":", event.length_or_id);
  }
  absl::StrAppend(&json, ",\"args\":{", ArgumentsText(event.arguments), "}}");
}

absl::Status Trace::Write() const {
  std::string json =
      "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
      "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"muster\"}}";
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [track, name] : tracks_) {
      absl::StrAppend(&json, ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":", track,
                      ",\"name\":\"thread_name\",\"args\":{\"name\":", Quoted(name), "}}");
    }
  }
  const int64_t recorded = std::min<int64_t>(next_.load(std::memory_order_relaxed), events_max_);
  for (int64_t i = 0; i < recorded; ++i) AppendTo(json, events_[i], origin_);
  absl::StrAppend(&json, "\n],\"otherData\":{\"dropped\":", dropped(), "}}\n");

  std::ofstream file(path_, std::ios::binary | std::ios::trunc);
  file << json;
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write the trace to ", path_, ": ",
                                             strerror(errno), "; is there such a folder?"));
}

}  // namespace muster
