#include "services/coordinator/diagnostics/job_traces.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "services/coordinator/common/proto_time.h"

namespace muster {
namespace {

constexpr int kStepsDefault = 5;
constexpr int kProbes = 8;  // clock probes before the steps, and again after; the best one counts
constexpr int64_t kEventsOfMemberMin = 256;

std::vector<FieldFault> FaultsOf(const v1::TraceJobRequest& request) {
  std::vector<FieldFault> faults;
  if (request.steps() < 0 || request.steps() > limits::kTraceStepsMax) {
    faults.push_back({"steps", absl::StrCat("must be between 1 and ", limits::kTraceStepsMax,
                                            " (is ", request.steps(), ")")});
  }
  const absl::Duration timeout = FromProto(request.timeout());
  if (request.has_timeout() &&
      (timeout <= absl::ZeroDuration() || timeout > limits::kTraceTimeoutMax)) {
    faults.push_back({"timeout", absl::StrCat("must be more than 0 and at most ",
                                              absl::FormatDuration(limits::kTraceTimeoutMax),
                                              " (is ", absl::FormatDuration(timeout), ")")});
  }
  return faults;
}

// Divides the total number of events of a trace among the members.
int64_t EventsOfEach(size_t members) {
  return std::clamp(limits::kTracedEventsMax / static_cast<int64_t>(std::max<size_t>(members, 1)),
                    kEventsOfMemberMin, limits::kTracedEventsOfMemberMax);
}

// The steps [first, last] that a worker has recorded.
struct StepRange {
  int64_t first = std::numeric_limits<int64_t>::max();
  int64_t last = -1;
};
void AddSteps(const v1::MemberTrace& trace, StepRange& range) {
  for (const v1::TraceEvent& event : trace.events()) {
    if (event.kind() != v1::TRACE_EVENT_KIND_SPAN || trace.names(event.name()) != "step") continue;
    for (int i = 0; i < event.arguments_size(); ++i) {
      if (trace.names(event.argument_names(i)) != "step") continue;
      range.first = std::min(range.first, event.arguments(i));
      range.last = std::max(range.last, event.arguments(i));
    }
  }
}

// Checks the indexes into the names, because they come from the member and must not be out of
// range.
bool NamesAreKnown(const v1::MemberTrace& trace) {
  const auto known = [&trace](int number) { return number >= 0 && number < trace.names_size(); };
  return std::ranges::all_of(trace.events(), [&known](const v1::TraceEvent& event) {
    return known(event.name()) && (event.what() == 0 || known(event.what())) &&
           event.argument_names_size() == event.arguments_size() &&
           std::ranges::all_of(event.argument_names(), known);
  });
}

}  // namespace

uint64_t JobTraces::Ask(const v1::TraceJobRequest& request, Answer answer) {
  if (const auto faults = FaultsOf(request); !faults.empty()) {
    answer(FaultsToStatus(faults, "INVALID_REQUEST"));
    return 0;
  }
  absl::StatusOr<Running> begun = Begin(request);
  if (!begun.ok()) {
    answer(begun.status());
    return 0;
  }
  absl::Status refused;
  Actions actions;
  uint64_t number = 0;
  {
    absl::MutexLock lock(&mu_);
    const auto same = std::ranges::find_if(
        running_, [&](const auto& other) { return other.second.job == begun->job; });
    if (same != running_.end()) {
      refused =
          WithReason(absl::AbortedError(absl::StrCat(
                         begun->job, " is already being traced for another caller, for ",
                         absl::FormatDuration(same->second.timeout), " at most: try again then")),
                     "TRACE_GOES_ON");
    } else if (std::ssize(running_) >= limits::kTracesMax) {
      refused =
          WithReason(absl::ResourceExhaustedError(absl::StrCat(
                         limits::kTracesMax, " jobs are being traced (the limit): try again")),
                     "TOO_MANY_CALLS");
    } else {
      number = ++last_;
      Running& running = running_[number] = *std::move(begun);
      running.answer = answer;
      for (Member& member : running.members) {
        if (member.told.role() != v1::WORKER) AskToRecord(number, running, member, actions);
      }
      Advance(actions);
    }
  }
  if (!refused.ok()) {
    answer(std::move(refused));
    return 0;
  }
  Perform(std::move(actions));
  return number;
}

absl::StatusOr<JobTraces::Running> JobTraces::Begin(const v1::TraceJobRequest& request) {
  Running running;
  std::vector<std::string> names;
  {
    JobRegistry::Transaction transaction(registry_);
    ASSIGN_OR_RETURN(const JobRegistry::Entry* const entry, transaction.Find(request.name()));
    const v1::Job& job = *entry->published;
    if (job.state() != v1::RUNNING) {
      return WithReason(
          absl::FailedPreconditionError(
              absl::StrCat(JobIdOf(job.name()), " is not running (", v1::JobState_Name(job.state()),
                           "): a trace records what members do from now on")),
          "JOB_NOT_RUNNING");
    }
    running.job = JobIdOf(job.name());
    names.assign(job.workers().begin(), job.workers().end());
    const v1::SyncMode mode = job.spec().sync().mode();
    running.together = job.workers_size() > 1 && (mode == v1::BSP || mode == v1::ALLREDUCE);
    for (const std::string& ps : job.ps()) names.push_back(ps);
  }
  running.steps = request.steps() == 0 ? kStepsDefault : request.steps();
  running.timeout =
      request.has_timeout() ? FromProto(request.timeout()) : limits::kTraceTimeoutDefault;
  running.begin = registry_->Now();
  running.begin_steady = steady_();
  const auto attached = fleet_->members();
  for (const std::string& name : names) {
    Member& member = running.members.emplace_back();
    member.told.set_member(name);
    const auto known = attached.find(name);
    if (known == attached.end() || !known->second.attached) {
      member.told.set_trouble("it was not attached to the coordinator");
      continue;
    }
    const v1::Hello& hello = known->second.hello;
    member.incarnation = hello.incarnation();
    member.told.set_role(hello.role());
    member.told.set_host(hello.host());
    member.told.set_pid(hello.pid());
  }
  return running;
}

v1::Directive& JobTraces::Order(uint64_t number, const Running& running, const Member& member,
                                Actions& actions) const {
  v1::Directive& directive =
      actions.orders.emplace_back(member.told.member(), v1::Directive()).second;
  directive.set_job(running.job);
  directive.mutable_trace_order()->set_request(number);
  return directive;
}

void JobTraces::AskToRecord(uint64_t number, const Running& running, Member& member,
                            Actions& actions) {
  if (member.failed()) return;
  v1::RecordSteps& record =
      *Order(number, running, member, actions).mutable_trace_order()->mutable_record();
  record.set_steps(running.steps + running.margin());
  record.set_events_max(EventsOfEach(running.members.size()));
  member.asked = registry_->Now();
  member.probes_left = kProbes;
  Probe(number, running, member, actions);
}

void JobTraces::Probe(uint64_t number, const Running& running, Member& member, Actions& actions) {
  Order(number, running, member, actions).mutable_trace_order()->set_probe(++member.probe);
  member.probe_sent = steady_();
}

void JobTraces::Take(const std::string& member, const v1::MemberReport& report) {
  const int64_t received = steady_();
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    for (const v1::TracePart& part : report.traces()) {
      const auto running = running_.find(part.request());
      if (running == running_.end()) continue;
      auto& members = running->second.members;
      const auto known = std::ranges::find_if(
          members, [&](const Member& other) { return other.told.member() == member; });
      if (known == members.end() || known->failed()) continue;
      TakePart(running->second, *known, part, received, actions);
    }
    Advance(actions);
  }
  Perform(std::move(actions));
}

void JobTraces::TakePart(Running& running, Member& member, const v1::TracePart& part,
                         int64_t received, Actions& actions) {
  member.begun = true;
  if (part.probe() != 0 && part.probe() == member.probe && member.probes_left > 0) {
    ClockOffset& clock = running.telling() ? member.after : member.before;
    clock.Add({.sent = member.probe_sent,
               .heard = part.heard_nanos(),
               .told = part.told_nanos(),
               .received = received});
    if (--member.probes_left > 0) Probe(part.request(), running, member, actions);
  }
  if (part.over()) {
    member.over = true;
    member.first_step = part.first_step();
    member.end_step = part.end_step();
  }
  if (!part.has_told() || member.all_told) return;
  const v1::MemberTrace& told = part.told();
  if (std::ssize(member.told.events()) + std::ssize(told.events()) >
      EventsOfEach(running.members.size())) {
    member.told.set_trouble("it sent more events than were requested");
    return;
  }
  member.told.mutable_names()->MergeFrom(told.names());
  member.told.mutable_tracks()->MergeFrom(told.tracks());
  member.told.mutable_events()->MergeFrom(told.events());
  if (!part.last()) return;
  member.told.set_dropped(told.dropped());
  member.told.set_trouble(told.trouble());
  member.all_told = true;
}

// Sends the next orders of each trace, and answers the traces that are complete. A trace is
// complete when every member has failed or is done, or when the time for telling is over.
void JobTraces::Advance(Actions& actions) {
  const absl::Time now = registry_->Now();
  for (auto it = running_.begin(); it != running_.end();) {
    auto& [number, running] = *it;
    if (!running.workers_asked && std::ranges::all_of(running.members, [](const Member& member) {
          return member.failed() || member.begun || member.told.role() == v1::WORKER;
        })) {
      running.workers_asked = true;
      for (Member& member : running.members) {
        if (member.told.role() == v1::WORKER) AskToRecord(number, running, member, actions);
      }
    }
    const bool steps_made = std::ranges::all_of(running.members, [](const Member& member) {
      return member.failed() || member.over || member.told.role() != v1::WORKER;
    });
    if (!running.telling() && steps_made) AskToTell(number, running, actions);
    const bool over = running.telling() && now - running.telling_since >= limits::kTraceTellMax;
    if (!over && !std::ranges::all_of(running.members, &Member::done)) {
      ++it;
      continue;
    }
    Answer answer = std::move(running.answer);
    actions.answers.emplace_back(std::move(answer), Finish(running));
    it = running_.erase(it);
  }
}

void JobTraces::AskToTell(uint64_t number, Running& running, Actions& actions) {
  running.telling_since = registry_->Now();
  StepRange range;
  bool all_over = true;
  int64_t latest = 0;  // the latest first step of a worker
  for (const Member& member : running.members) {
    if (member.failed() || member.told.role() != v1::WORKER) continue;
    all_over = all_over && member.over;
    latest = std::max(latest, member.first_step);
    range.first = std::min(range.first, member.first_step);
    range.last = std::max(range.last, member.end_step - 1);
  }
  if (running.together) range = {.first = latest, .last = latest + running.steps - 1};
  if (!all_over || range.last < 0) {  // otherwise asks for everything
    range = {.first = 0, .last = std::numeric_limits<int64_t>::max() - 1};
  }
  for (Member& member : running.members) {
    if (member.failed()) continue;
    v1::TellSteps& tell =
        *Order(number, running, member, actions).mutable_trace_order()->mutable_tell();
    tell.set_first_step(range.first);
    tell.set_end_step(range.last + 1);
    member.probes_left = kProbes;
    Probe(number, running, member, actions);
  }
}

v1::TraceJobResponse JobTraces::Finish(Running& running) {
  v1::TraceJobResponse response;
  *response.mutable_begin_time() = ToProto(running.begin);
  StepRange range;
  for (Member& member : running.members) {
    v1::MemberTrace& told = *response.add_members() = std::move(member.told);
    std::string trouble = told.trouble();
    if (trouble.empty() && !member.all_told) {
      trouble = absl::StrCat("it has not sent its recording for ",
                             absl::FormatDuration(limits::kTraceTellMax));
    }
    if (!NamesAreKnown(told)) {
      told.clear_events();
      if (trouble.empty()) trouble = "its recording is incomplete";
    }
    const auto clock = OffsetOver(member.before.best(), member.after.best());
    if (!clock && !told.events().empty()) {
      told.clear_events();
      if (trouble.empty()) trouble = "its clock offset is unknown";
    }
    if (trouble.empty() && told.role() == v1::WORKER && !member.over) {
      trouble = absl::StrCat("it has not made ", running.steps, " steps in ",
                             absl::FormatDuration(running.timeout),
                             ", or the job has ended: this is what there was");
    }
    told.set_trouble(trouble);
    if (clock) {
      told.set_clock_offset_nanos(clock->offset);
      told.set_clock_uncertainty_nanos(clock->uncertainty);
      for (v1::TraceEvent& event : *told.mutable_events()) {
        event.set_time_nanos(event.time_nanos() + clock->offset - running.begin_steady);
      }
    }
    if (told.role() == v1::WORKER) AddSteps(told, range);
  }
  if (range.last >= 0) {
    response.set_first_step(range.first);
    response.set_end_step(range.last + 1);
  }
  return response;
}

void JobTraces::Drop(uint64_t number) {
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    const auto running = running_.find(number);
    if (running == running_.end()) return;
    for (const Member& member : running->second.members) {
      if (member.failed()) continue;
      Order(number, running->second, member, actions).mutable_trace_order()->mutable_tell();
    }
    running_.erase(running);
  }
  Perform(std::move(actions));
}

void JobTraces::Expire() {
  absl::btree_map<uint64_t, std::string> jobs;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [number, running] : running_) jobs[number] = running.job;
  }
  if (jobs.empty()) return;
  {
    JobRegistry::Transaction transaction(registry_);
    absl::erase_if(jobs, [&](const auto& job) {
      const auto entry = transaction.Find(job.second);
      return entry.ok() && (*entry)->job.active();
    });
  }  // only traces of jobs that are not active any more remain
  const auto attached = fleet_->members();
  const absl::Time now = registry_->Now();
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    for (auto& [number, running] : running_) {
      for (Member& member : running.members) {
        if (member.done()) continue;
        const auto known = attached.find(member.told.member());
        if (known == attached.end() || known->second.hello.incarnation() != member.incarnation) {
          member.told.set_trouble("it was lost meanwhile");
        } else if (!member.begun && now - member.asked >= limits::kTraceTellMax) {
          member.told.set_trouble(absl::StrCat(
              "it has not begun to record for ", absl::FormatDuration(limits::kTraceTellMax),
              ": it is busy, or runs an older Muster that knows no traces"));
        }
      }
      const bool over = now - running.begin >= running.timeout || jobs.contains(number);
      if (over && !running.telling()) AskToTell(number, running, actions);
    }
    Advance(actions);
  }
  Perform(std::move(actions));
}

void JobTraces::Perform(Actions actions) {
  for (auto& [member, directive] : actions.orders) {
    fleet_->Send(member, {std::move(directive), nullptr});
  }
  for (auto& [answer, response] : actions.answers) answer(std::move(response));
}

}  // namespace muster
