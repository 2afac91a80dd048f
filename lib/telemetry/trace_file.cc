#include "lib/telemetry/trace_file.h"

#include <cerrno>
#include <cstdint>
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

// Returns a time in microseconds, the unit of the format.
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

// Returns `text` as a string of JSON. Unlike names of events, names of members and devices may need
// escapes.
std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) >= ' ') quoted += c;
  }
  return quoted + "\"";
}

void AppendTo(std::string& json, const Trace::Event& event, int64_t origin) {
  using Kind = Trace::Kind;
  const absl::string_view phase = event.kind == Kind::kSpan    ? "X"
                                  : event.kind == Kind::kBegin ? "b"
                                  : event.kind == Kind::kMark  ? "n"
                                                               : "e";
  absl::StrAppend(&json, ",\n{\"ph\":\"", phase, "\",\"pid\":1,\"tid\":", event.track,
                  ",\"ts\":", Microseconds(event.time - origin));
  if (event.kind == Kind::kSpan) {
    absl::StrAppend(&json, ",\"name\":\"", event.name, "\",\"dur\":", Microseconds(event.length));
  } else {
    absl::StrAppend(&json, ",\"name\":\"", event.kind == Kind::kMark ? event.what : event.name,
                    "\",\"cat\":\"", event.name, "\",\"id\":", event.id);
  }
  absl::StrAppend(&json, ",\"args\":{", ArgumentsText(event.arguments), "}}");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Create(std::string path, Trace* trace,
                                                             int64_t events_max) {
  CHECK(trace->Start({.events_max = events_max}));
  auto file = absl::WrapUnique(new TraceFile(std::move(path), trace));
  absl::Status written = file->Write();
  if (!written.ok()) return written;
  return file;
}

TraceFile::TraceFile(std::string path, Trace* trace)
    : path_(std::move(path)), trace_(trace), origin_(Trace::Now()) {}

TraceFile::~TraceFile() {
  const absl::Status written = Write();
  LOG_IF(WARNING, !written.ok()) << written.message();
  trace_->Stop();
}

absl::Status TraceFile::Write() const {
  const Trace::Recording recording = trace_->Read();
  std::string json =
      "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
      "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"muster\"}}";
  for (const auto& [track, name] : recording.tracks) {
    absl::StrAppend(&json, ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":", track,
                    ",\"name\":\"thread_name\",\"args\":{\"name\":", Quoted(name), "}}");
  }
  for (const Trace::Event& event : recording.events) AppendTo(json, event, origin_);
  absl::StrAppend(&json, "\n],\"otherData\":{\"dropped\":", recording.dropped, "}}\n");

  std::ofstream file(path_, std::ios::binary | std::ios::trunc);
  file << json;
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write the trace to ", path_, ": ",
                                             strerror(errno), "; does the folder exist?"));
}

}  // namespace muster
