#include "cli/text/trace_json.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace muster::cli {
namespace {

constexpr int kCoordinator = 1;  // its process number; members have the next ones

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Returns the time in microseconds, the unit of the format.
std::string Microseconds(int64_t nanos) {
  return absl::StrFormat("%s%d.%03d", nanos < 0 ? "-" : "", std::abs(nanos) / 1000,
                         std::abs(nanos) % 1000);
}

int64_t NanosSince(const google::protobuf::Timestamp& begin,
                   const google::protobuf::Timestamp& time) {
  return (time.seconds() - begin.seconds()) * 1'000'000'000 + time.nanos() - begin.nanos();
}

class TraceWriter {
 public:
  void NameProcess(int process, const std::string& name) {
    Name(process, 0, "process_name", name);
    Add(absl::StrFormat(
        R"({"ph":"M","pid":%d,"tid":0,"ts":0,"name":"process_sort_index","args":{"sort_index":%d}})",
        process, process));
  }
  void NameTrack(int process, int track, const std::string& name) {
    Name(process, track, "thread_name", name);
  }
  void AddEvents(int process, const v1::MemberTrace& member);
  void AddJobEvent(int64_t nanos, const v1::JobEvent& event) {
    Add(absl::StrFormat(
        R"({"ph":"i","s":"g","pid":%d,"tid":0,"ts":%s,"name":%s,"args":{"message":%s}})",
        kCoordinator, Microseconds(nanos), Quoted(event.reason()), Quoted(event.message())));
  }
  std::string Finish(const nlohmann::json& other) && {
    return absl::StrCat(
        "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", text_,
        "\n],\"otherData\":", other.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
        "}\n");
  }

 private:
  void Add(absl::string_view event) {
    absl::StrAppend(&text_, text_.empty() ? "\n" : ",\n", event);
  }
  void Name(int process, int track, absl::string_view what, const std::string& name) {
    Add(absl::StrFormat(R"({"ph":"M","pid":%d,"tid":%d,"ts":0,"name":"%s","args":{"name":%s}})",
                        process, track, what, Quoted(name)));
  }

  std::string text_;
};

std::string ArgumentsText(const v1::MemberTrace& member, const v1::TraceEvent& event) {
  std::string text;
  for (int i = 0; i < event.arguments_size(); ++i) {
    absl::StrAppend(&text, text.empty() ? "" : ",", Quoted(member.names(event.argument_names(i))),
                    ":", event.arguments(i));
  }
  return text;
}

// Adds the events by time. Of events that begin together, the longest comes first, because it
// contains the others.
void TraceWriter::AddEvents(int process, const v1::MemberTrace& member) {
  std::vector<const v1::TraceEvent*> sorted;
  for (const v1::TraceEvent& event : member.events()) sorted.push_back(&event);
  std::ranges::stable_sort(sorted, [](const v1::TraceEvent* a, const v1::TraceEvent* b) {
    return a->time_nanos() != b->time_nanos() ? a->time_nanos() < b->time_nanos()
                                              : a->length_nanos() > b->length_nanos();
  });
  for (const v1::TraceEvent* const event : sorted) {
    const std::string& name = member.names(event->name());
    const std::string arguments = ArgumentsText(member, *event);
    if (event->kind() == v1::TRACE_EVENT_KIND_SPAN) {
      Add(absl::StrFormat(R"({"ph":"X","pid":%d,"tid":%d,"ts":%s,"dur":%s,"name":%s,"args":{%s}})",
                          process, event->track(), Microseconds(event->time_nanos()),
                          Microseconds(event->length_nanos()), Quoted(name), arguments));
      if (name != "step" || event->arguments().empty()) continue;
      const int64_t end = event->time_nanos() + event->length_nanos();
      Add(absl::StrFormat(
          R"({"ph":"C","pid":%d,"tid":0,"ts":%s,"name":"steps made","args":{"steps":%d}})", process,
          Microseconds(end), event->arguments(0) + 1));
      continue;
    }
    // The other kinds become asynchronous events (b, e, n), which may overlap on a track.
    const bool is_mark = event->kind() == v1::TRACE_EVENT_KIND_MARK;
    const absl::string_view phase = is_mark                                       ? "n"
                                    : event->kind() == v1::TRACE_EVENT_KIND_BEGIN ? "b"
                                                                                  : "e";
    // Event ids are unique in a process. The format needs unique ids in the whole trace.
    Add(absl::StrFormat(
        R"({"ph":"%s","pid":%d,"tid":%d,"ts":%s,"name":%s,"cat":%s,"id":"%d.%d","args":{%s}})",
        phase, process, event->track(), Microseconds(event->time_nanos()),
        Quoted(is_mark ? member.names(event->what()) : name), Quoted(name), process, event->id(),
        arguments));
  }
}

int64_t EndOf(const v1::TraceJobResponse& trace) {
  int64_t end = 0;
  for (const v1::MemberTrace& member : trace.members()) {
    for (const v1::TraceEvent& event : member.events()) {
      end = std::max(end, event.time_nanos() + event.length_nanos());
    }
  }
  return end;
}

}  // namespace

std::string TraceJson(const std::string& job, const v1::TraceJobResponse& trace,
                      const std::vector<v1::JobEvent>& events) {
  TraceWriter writer;
  nlohmann::json other = {
      {"job", job},
      {"first_step", trace.first_step()},
      {"end_step", trace.end_step()},
      {"begin_time", absl::FormatTime(absl::RFC3339_full,
                                      absl::FromUnixSeconds(trace.begin_time().seconds()) +
                                          absl::Nanoseconds(trace.begin_time().nanos()),
                                      absl::UTCTimeZone())},
      {"members", nlohmann::json::array()}};
  writer.NameProcess(kCoordinator, "coordinator");
  writer.NameTrack(kCoordinator, 0, "events of the job");
  const int64_t end = EndOf(trace);
  for (const v1::JobEvent& event : events) {
    const int64_t at = NanosSince(trace.begin_time(), event.time());
    if (at >= 0 && at <= end) writer.AddJobEvent(at, event);
  }
  int process = kCoordinator;
  for (const v1::MemberTrace& member : trace.members()) {
    ++process;
    writer.NameProcess(process, absl::StrCat(member.member(), " (",
                                             absl::AsciiStrToLower(v1::Role_Name(member.role())),
                                             ", ", member.host(), ", pid ", member.pid(), ")"));
    for (const v1::TraceTrack& track : member.tracks()) {
      writer.NameTrack(process, track.track(), track.name());
    }
    writer.AddEvents(process, member);
    other["members"].push_back({{"member", member.member()},
                                {"pid", process},
                                {"events", member.events_size()},
                                {"dropped", member.dropped()},
                                {"clock_offset_nanos", member.clock_offset_nanos()},
                                {"clock_uncertainty_nanos", member.clock_uncertainty_nanos()},
                                {"trouble", member.trouble()}});
  }
  return std::move(writer).Finish(other);
}

std::string TraceText(const v1::TraceJobResponse& trace) {
  int64_t events = 0, uncertainty = 0;
  std::string troubles;
  for (const v1::MemberTrace& member : trace.members()) {
    events += member.events_size();
    uncertainty = std::max(uncertainty, member.clock_uncertainty_nanos());
    if (!member.trouble().empty()) {
      absl::StrAppend(&troubles, member.member(), ": ", member.trouble(), "\n");
    }
    if (member.dropped() > 0) {
      absl::StrAppend(&troubles, member.member(), ": no room for its last ", member.dropped(),
                      " events; ask for fewer steps\n");
    }
  }
  const std::string steps =
      trace.end_step() > trace.first_step()
          ? absl::StrCat("steps ", trace.first_step(), " to ", trace.end_step() - 1)
          : "no complete step";
  return absl::StrCat(
      steps, " of ", trace.members_size(), " members, ", events, " events, clocks to ",
      absl::FormatDuration(absl::Microseconds((uncertainty + 999) / 1000)), "\n", troubles);
}

}  // namespace muster::cli
