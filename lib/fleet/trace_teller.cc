#include "lib/fleet/trace_teller.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lib/limits/limits.h"

namespace muster {
namespace {

constexpr int kPartEventsMax = 4096;  // some 200 KB
constexpr int kPartsReportedMax = 4;  // in one report: below limits::kRequestBytesMax
constexpr int64_t kProbesHeldMax =
    256;  // far more than a coordinator sends before the first answer

v1::TraceEventKind ToProto(Trace::Kind kind) {
  switch (kind) {
    case Trace::Kind::kSpan:
      return v1::TRACE_EVENT_KIND_SPAN;
    case Trace::Kind::kBegin:
      return v1::TRACE_EVENT_KIND_BEGIN;
    case Trace::Kind::kMark:
      return v1::TRACE_EVENT_KIND_MARK;
    case Trace::Kind::kEnd:
      return v1::TRACE_EVENT_KIND_END;
    case Trace::Kind::kNone:
      break;
  }
  return v1::TRACE_EVENT_KIND_UNSPECIFIED;
}

// Replaces names by numbers. Keyed by content, because equal literals may have different addresses.
class Names {
 public:
  int32_t NumberOf(const char* name) {
    const auto [known, is_new] = numbers_.try_emplace(name, static_cast<int32_t>(numbers_.size()));
    if (is_new) fresh_.emplace_back(name);
    return known->second;
  }
  // Returns the names added since the last call.
  std::vector<std::string> TakeFresh() { return std::exchange(fresh_, {}); }

 private:
  absl::flat_hash_map<std::string, int32_t> numbers_;
  std::vector<std::string> fresh_;
};

bool IsOf(const v1::TellSteps& steps, const Trace::Event& event) {
  for (const TraceArgument& argument : event.arguments) {
    if (argument.name == nullptr) break;
    if (std::strcmp(argument.name, "step") != 0) continue;
    return argument.value >= steps.first_step() && argument.value < steps.end_step();
  }
  return true;
}

void Fill(const Trace::Event& event, Names& names, v1::TraceEvent& filled) {
  filled.set_kind(ToProto(event.kind));
  filled.set_track(event.track);
  filled.set_name(names.NumberOf(event.name));
  if (event.what != nullptr) filled.set_what(names.NumberOf(event.what));
  filled.set_time_nanos(event.time);
  filled.set_length_nanos(event.length);
  filled.set_id(event.id);
  for (const TraceArgument& argument : event.arguments) {
    if (argument.name == nullptr) break;
    filled.add_argument_names(names.NumberOf(argument.name));
    filled.add_arguments(argument.value);
  }
}

}  // namespace

TraceTeller::~TraceTeller() { Forget(); }

void TraceTeller::Forget() {
  absl::MutexLock lock(&mu_);
  for (const auto& [job, recording] : recordings_) recording.trace->Stop();
  recordings_.clear();
  probes_.clear();
  parts_.clear();
}

void TraceTeller::Handle(const v1::Directive& directive) {
  const int64_t heard = Trace::Now();
  const v1::TraceOrder& order = directive.trace_order();
  absl::MutexLock lock(&mu_);
  if (order.probe() != 0 && std::ssize(probes_) < kProbesHeldMax) {
    v1::TracePart& answer = probes_.emplace_back();
    answer.set_request(order.request());
    answer.set_probe(order.probe());
    answer.set_heard_nanos(heard);
  }
  if (order.has_record()) Record(directive.job(), order);
  if (order.has_tell()) Tell(directive.job(), order);
  report_soon_();
}

void TraceTeller::Record(const std::string& job, const v1::TraceOrder& order) {
  if (const auto before = recordings_.find(job); before != recordings_.end()) {
    before->second.trace->Stop();
    recordings_.erase(before);
  }
  std::shared_ptr<Trace> trace = find_(job);
  if (trace == nullptr) return Excuse(order, "it does no work for the job");
  const bool started = trace->Start({
      .events_max =
          std::clamp<int64_t>(order.record().events_max(), 1, limits::kTracedEventsOfMemberMax),
      .steps = std::clamp<int64_t>(order.record().steps(), 1, limits::kTraceStepsMax),
      .over = report_soon_,
  });
  if (!started) return Excuse(order, "it writes its trace to a file: it was started with --trace");
  recordings_[job] = {.request = order.request(), .trace = std::move(trace)};
}

void TraceTeller::Excuse(const v1::TraceOrder& order, const std::string& trouble) {
  v1::TracePart& part = parts_.emplace_back();
  part.set_request(order.request());
  part.mutable_told()->set_trouble(trouble);
  part.set_last(true);
}

void TraceTeller::Tell(const std::string& job, const v1::TraceOrder& order) {
  const auto known = recordings_.find(job);
  if (known == recordings_.end() || known->second.request != order.request()) {
    return Excuse(order,
                  "it has no recording: its process or its stream started after the request");
  }
  const Trace::Recording recording = known->second.trace->Stop();
  recordings_.erase(known);
  Names names;
  v1::TracePart part;
  part.set_request(order.request());
  auto flush = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (std::string& name : names.TakeFresh()) part.mutable_told()->add_names(std::move(name));
    parts_.push_back(std::exchange(part, {}));
    part.set_request(order.request());
  };
  for (const Trace::Event& event : recording.events) {
    if (!IsOf(order.tell(), event)) continue;
    Fill(event, names, *part.mutable_told()->add_events());
    if (part.told().events_size() == kPartEventsMax) flush();
  }
  for (const auto& [number, name] : recording.tracks) {
    v1::TraceTrack& track = *part.mutable_told()->add_tracks();
    track.set_track(number);
    track.set_name(name);
  }
  part.mutable_told()->set_dropped(recording.dropped);
  part.set_last(true);
  flush();
}

bool TraceTeller::AddTo(v1::MemberReport& report) {
  absl::MutexLock lock(&mu_);
  for (auto& [job, recording] : recordings_) {
    const Trace::Steps made = recording.trace->over();
    if (recording.over_told || made.end == made.first) continue;
    recording.over_told = true;
    v1::TracePart& part = *report.add_traces();
    part.set_request(recording.request);
    part.set_over(true);
    part.set_first_step(made.first);
    part.set_end_step(made.end);
  }
  for (int i = 0; i < kPartsReportedMax && !parts_.empty(); ++i) {
    *report.add_traces() = std::move(parts_.front());
    parts_.pop_front();
  }
  // The clock answers come last, so that little time passes between reading the clock and sending.
  for (v1::TracePart& answer : probes_) {
    answer.set_told_nanos(Trace::Now());
    *report.add_traces() = std::move(answer);
  }
  probes_.clear();
  return !parts_.empty();
}

}  // namespace muster
