// Implements muster events, logs, metrics, top, links and trace.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/commands/session.h"
#include "cli/text/curve.h"
#include "cli/text/event_fold.h"
#include "cli/text/job_text.h"
#include "cli/text/links_text.h"
#include "cli/text/member_log.h"
#include "cli/text/tfevents.h"
#include "cli/text/timing_text.h"
#include "cli/text/trace_json.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

using WatchStep = CoordinatorClient::WatchStep;

constexpr absl::Duration kPollInterval = absl::Seconds(1);
constexpr absl::Duration kTopInterval = absl::Seconds(2);

absl::Time ToTime(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

// Blocks for `time`. Returns false if a signal came.
bool Wait(const Session& session, absl::Duration time) {
  if (session.interrupt != nullptr) return !session.interrupt->WaitFor(time);
  absl::SleepFor(time);
  return true;
}

// ---------------------------------------------------------------- events

struct EventOptions {
  std::string job;  // "": all jobs
  bool watch = false;
  int limit = 200;
};

std::string EventTable(const std::vector<v1::JobEvent>& events, bool with_header) {
  Table table({"TIME", "JOB", "STATE", "REASON", "MESSAGE"});
  for (const v1::JobEvent& event : events) {
    table.Add({FormatUtc(ToTime(event.time())), event.job(), v1::JobState_Name(event.state()),
               event.reason(), event.message()});
  }
  const std::string text = table.ToString();
  return with_header ? text : text.substr(text.find('\n') + 1);
}

void PrintEvents(const Session& session, std::vector<v1::JobEvent> events, bool with_header) {
  SortByTime(events);
  v1::ListEventsResponse list;
  list.mutable_events()->Assign(events.begin(), events.end());
  session.Print(list, EventTable(events, with_header), EventTable(events, false));
  std::fflush(stdout);
}

// Prints events as they come. Folds checkpoint events for people; programs get all events.
class EventPrinter {
 public:
  EventPrinter(const Session& session, bool with_header)
      : session_(session), folds_(session.is_for_people()), with_header_(with_header) {}

  void Take(const std::vector<v1::JobEvent>& events) {
    Print(folds_ ? fold_.Take(events) : events);
  }
  // Prints the events that are held back. Call it at the end.
  void Finish() { Print(fold_.Rest()); }

 private:
  void Print(std::vector<v1::JobEvent> events) {
    if (events.empty()) return;
    PrintEvents(session_, std::move(events), std::exchange(with_header_, false));
  }

  const Session& session_;
  const bool folds_;
  bool with_header_;
  EventFold fold_;
};

// Returns the newest `limit` events of one job or of the newest jobs, in order of time.
absl::StatusOr<std::vector<v1::JobEvent>> ReadEvents(CoordinatorClient& client,
                                                     const EventOptions& options, bool folds) {
  std::vector<v1::JobEvent> events;
  v1::ListEventsRequest request;
  if (!options.job.empty()) request.set_parent(JobName(JobIdOf(options.job)));
  request.set_page_size(limits::kPageSizeMax);
  do {
    ASSIGN_OR_RETURN(const v1::ListEventsResponse page, client.ListEvents(request));
    events.insert(events.end(), page.events().begin(), page.events().end());
    request.set_page_token(page.next_page_token());
    const bool enough = options.job.empty() && std::ssize(events) >= options.limit;
    if (enough) break;
  } while (!request.page_token().empty());
  SortByTime(events);
  if (folds) events = Folded(events);
  if (std::ssize(events) > options.limit) {
    events.erase(events.begin(), events.end() - options.limit);
  }
  return events;
}

absl::Status FollowEvents(CoordinatorClient& client, const Session& session,
                          std::map<std::string, uint64_t> known) {
  absl::Status failure;
  bool listing = true;
  EventPrinter printer(session, /*with_header=*/false);
  const absl::Status ended = client.WatchAll(
      {}, {.interrupt = session.interrupt}, [&](const v1::WatchJobsResponse& update) {
        std::vector<v1::JobEvent> news;
        for (const v1::Job& job : update.jobs()) {
          const std::string id = JobIdOf(job.name());
          uint64_t& revision = known[id];
          // While the existing jobs are listed, an unknown job starts at its present revision: its
          // older events are history.
          if (listing && revision == 0) revision = job.revision();
          if (revision >= job.revision()) continue;
          v1::ListEventsRequest request;
          request.set_parent(job.name());
          request.set_page_size(limits::kPageSizeMax);
          request.set_page_token(absl::StrCat(revision));
          const auto page = client.ListEvents(request);
          if (absl::IsNotFound(page.status())) continue;  // deleted meanwhile
          if (!page.ok()) {
            failure = page.status();
            return WatchStep::kStop;
          }
          news.insert(news.end(), page->events().begin(), page->events().end());
          if (!page->events().empty()) revision = page->events().rbegin()->revision();
        }
        listing = listing && !update.complete();
        printer.Take(news);
        return WatchStep::kContinue;
      });
  printer.Finish();
  RETURN_IF_ERROR(failure);
  return absl::IsCancelled(ended) ? absl::OkStatus() : ended;
}

absl::Status Events(const EventOptions& options, Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  if (!options.job.empty() && options.watch) {
    EventPrinter printer(session, /*with_header=*/true);
    const absl::Status ended = client.Watch(
        options.job, {.interrupt = session.interrupt}, [&](const v1::WatchJobResponse& update) {
          std::vector<v1::JobEvent> events(update.events().begin(), update.events().end());
          for (v1::JobEvent& event : events) event.set_job(JobIdOf(update.job().name()));
          printer.Take(events);
          return WatchStep::kContinue;
        });
    printer.Finish();
    if (!absl::IsCancelled(ended)) RETURN_IF_ERROR(ended);
    session.exit_code = session.SignalExitCode();
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::vector<v1::JobEvent> events,
                   ReadEvents(client, options, session.is_for_people()));
  PrintEvents(session, events, true);
  if (events.empty()) session.TellEmpty("events", client);
  if (!options.watch) return absl::OkStatus();
  std::map<std::string, uint64_t> known;
  for (const v1::JobEvent& event : events) {
    known[event.job()] = std::max(known[event.job()], event.revision());
  }
  RETURN_IF_ERROR(FollowEvents(client, session, std::move(known)));
  session.exit_code = session.SignalExitCode();
  return absl::OkStatus();
}

// ---------------------------------------------------------------- logs

struct LogOptions {
  std::string job;  // "": the logs of `members`
  std::vector<std::string> members;
  bool follow = false;
  int lines = 100;
};

// Returns the last `count` lines.
std::string LastLines(const std::string& text, int count) {
  size_t begin = text.size();
  if (begin > 0 && text.back() == '\n') --begin;
  for (int line = 0; line < count; ++line) {
    const size_t end = begin == 0 ? std::string::npos : text.rfind('\n', begin - 1);
    if (end == std::string::npos) return text;
    begin = end;
  }
  return text.substr(begin + 1);
}

void PrintLog(const std::string& member, bool named, const std::string& text) {
  if (!named) {
    std::fputs(text.c_str(), stdout);
    return;
  }
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    std::fputs(absl::StrCat(member, " | ", line, "\n").c_str(), stdout);
  }
}

// The place of the next line in a member's log.
struct LogPosition {
  std::optional<int64_t> offset;
  std::string incarnation;
};

// Prints the lines of a member's log from `position` on, or the last `lines` if it has no offset,
// and advances it. If `job` is not empty, lines of other jobs are left out.
absl::Status PrintNewLines(CoordinatorClient& client, const std::string& job,
                           const std::string& member, bool named, int lines,
                           LogPosition& position) {
  v1::ReadMemberLogRequest request;
  request.set_name(member);
  if (position.offset) request.set_offset(*position.offset);
  ASSIGN_OR_RETURN(v1::ReadMemberLogResponse part, client.ReadMemberLog(request));
  if (position.offset && part.incarnation() != position.incarnation) {
    request.set_offset(0);  // a new process: its log starts at 0
    ASSIGN_OR_RETURN(part, client.ReadMemberLog(request));
  }
  const bool is_first = !position.offset;
  position = {.offset = part.next_offset(), .incarnation = part.incarnation()};
  const std::string text =
      job.empty() ? part.text() : WithoutOtherJobs(part.text(), JobIdOf(job), member);
  PrintLog(member, named, is_first ? LastLines(text, lines) : text);
  return absl::OkStatus();
}

absl::Status Logs(const LogOptions& options, Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  std::vector<std::string> members = options.members;
  if (!options.job.empty()) {
    ASSIGN_OR_RETURN(const v1::Job job, client.GetJob(options.job));
    std::set<std::string> own(job.workers().begin(), job.workers().end());
    own.insert(job.ps().begin(), job.ps().end());
    for (const std::string& member : members) {
      if (own.contains(member)) continue;
      return absl::NotFoundError(absl::StrCat("--member ", member, ": is not a member of ",
                                              options.job, "; it has ", absl::StrJoin(own, ", ")));
    }
    if (members.empty()) members.assign(own.begin(), own.end());
    if (members.empty()) {
      return absl::NotFoundError(
          absl::StrCat(options.job, " has no members (", v1::JobState_Name(job.state()), ")"));
    }
  }
  if (members.empty()) {
    return absl::InvalidArgumentError("give a JOB or --member; muster members lists the members");
  }
  std::map<std::string, LogPosition> positions;
  bool any = false;
  absl::Status first;
  for (const std::string& member : members) {
    const absl::Status printed = PrintNewLines(client, options.job, member, members.size() > 1,
                                               options.lines, positions[member]);
    any = any || printed.ok();
    if (!printed.ok() && members.size() > 1) {
      std::fprintf(stderr, "%s: %s\n", member.c_str(), std::string(printed.message()).c_str());
    }
    first.Update(printed);
  }
  if (!any) return first;  // some members of an ended job may be gone
  while (options.follow && Wait(session, kPollInterval)) {
    for (const std::string& member : members) {
      // A member that is away or was replaced is followed again when it is back.
      const absl::Status printed = PrintNewLines(client, options.job, member, members.size() > 1,
                                                 options.lines, positions[member]);
      if (!printed.ok() && !absl::IsNotFound(printed) && !absl::IsUnavailable(printed)) {
        return printed;
      }
    }
    std::fflush(stdout);
  }
  session.exit_code = session.SignalExitCode();
  return absl::OkStatus();
}

// ---------------------------------------------------------------- metrics

struct MetricsOptions {
  std::string job;
  std::vector<std::string> series;
  int points = 0;
  int64_t from = 0;
  int64_t to = 0;
  bool csv = false;
  std::string tensorboard;
};

v1::ReadJobMetricsRequest RequestOf(const MetricsOptions& options) {
  v1::ReadJobMetricsRequest request;
  request.set_name(JobName(JobIdOf(options.job)));
  for (const std::string& series : options.series) request.add_series(series);
  request.set_first_step(options.from);
  request.set_last_step(options.to);
  request.set_points(options.points);
  return request;
}

// Calls `visit` with every step, range by range, or with --points samples in one range.
absl::Status ForEachRange(CoordinatorClient& client, const MetricsOptions& options,
                          const std::function<void(const v1::ReadJobMetricsResponse&)>& visit) {
  v1::ReadJobMetricsRequest request = RequestOf(options);
  if (options.points > 0) {
    ASSIGN_OR_RETURN(const v1::ReadJobMetricsResponse all, client.ReadJobMetrics(request));
    visit(all);
    return absl::OkStatus();
  }
  const int64_t last = options.to > 0 ? options.to : std::numeric_limits<int64_t>::max();
  request.set_points(limits::kMetricPointsMax);
  for (int64_t first = options.from;; first += limits::kMetricPointsMax) {
    request.set_first_step(first);
    request.set_last_step(std::min(last, first + limits::kMetricPointsMax - 1));
    ASSIGN_OR_RETURN(const v1::ReadJobMetricsResponse range, client.ReadJobMetrics(request));
    visit(range);
    // The last evaluation has the step after the last one, so the loop stops one step later.
    if (request.last_step() >= last || request.last_step() > range.steps()) return absl::OkStatus();
  }
}

std::string NumberText(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.9g", value) : "nan";
}

// Prints "step,loss,..." and a row for each step. A field is empty if the series has no value
// there.
absl::Status PrintCsv(CoordinatorClient& client, const MetricsOptions& options) {
  std::vector<std::string> columns = options.series;
  if (columns.empty()) {
    MetricsOptions few = options;
    few.points = 2;
    ASSIGN_OR_RETURN(const auto all, client.ReadJobMetrics(RequestOf(few)));
    for (const v1::MetricSeries& series : all.series()) columns.push_back(series.name());
  }
  std::fputs(absl::StrCat("step,", absl::StrJoin(columns, ","), "\n").c_str(), stdout);
  return ForEachRange(client, options, [&](const v1::ReadJobMetricsResponse& range) {
    std::map<int64_t, std::vector<std::string>> rows;
    for (const v1::MetricSeries& series : range.series()) {
      const auto column = std::ranges::find(columns, series.name());
      if (column == columns.end()) continue;  // the series began after the header
      for (int i = 0; i < series.steps_size(); ++i) {
        std::vector<std::string>& row = rows[series.steps(i)];
        row.resize(columns.size());
        row[column - columns.begin()] = NumberText(series.values(i));
      }
    }
    for (const auto& [step, row] : rows) {
      std::fputs(absl::StrCat(step, ",", absl::StrJoin(row, ","), "\n").c_str(), stdout);
    }
  });
}

// Writes an event file. Steps recorded by an older coordinator have no times; they are spread
// evenly over the job's time.
absl::Status WriteTensorBoard(CoordinatorClient& client, const MetricsOptions& options) {
  ASSIGN_OR_RETURN(const v1::Job job, client.GetJob(options.job));
  const absl::Time start = ToTime(job.has_start_time() ? job.start_time() : job.create_time());
  const absl::Time end = std::max(start, ToTime(job.progress().update_time()));
  ASSIGN_OR_RETURN(const auto file,
                   EventFile::Create(options.tensorboard, JobIdOf(options.job), start));
  RETURN_IF_ERROR(ForEachRange(client, options, [&](const v1::ReadJobMetricsResponse& range) {
    const absl::Duration each = (end - start) / std::max<int64_t>(1, range.steps());
    for (const v1::MetricSeries& series : range.series()) {
      for (int i = 0; i < series.steps_size(); ++i) {
        const int64_t step = series.steps(i);
        const bool known = i < series.times_size() && std::isfinite(series.times(i));
        file->AddScalar(
            series.name(), step, series.values(i),
            known ? absl::UnixEpoch() + absl::Seconds(series.times(i)) : start + each * step);
      }
    }
  }));
  RETURN_IF_ERROR(file->Close());
  std::printf("%s\n", file->path().c_str());
  return absl::OkStatus();
}

std::string MetricTable(const v1::ReadJobMetricsResponse& metrics) {
  Table table({"SERIES", "FIRST", "LAST", "MIN", "MAX", "LAST STEP"});
  for (const v1::MetricSeries& series : metrics.series()) {
    if (series.values().empty()) continue;
    double least = std::numeric_limits<double>::infinity(), greatest = -least;
    for (const double value : series.values()) {
      if (!std::isfinite(value)) continue;
      least = std::min(least, value);
      greatest = std::max(greatest, value);
    }
    auto text = [](double value) { return absl::StrFormat("%.5g", value); };
    table.Add({series.name(), text(series.values(0)), text(*series.values().rbegin()), text(least),
               text(greatest), absl::StrCat(*series.steps().rbegin())});
  }
  return table.ToString();
}

absl::Status ShowMetrics(const MetricsOptions& options, const Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  if (!options.tensorboard.empty()) return WriteTensorBoard(client, options);
  if (options.csv) return PrintCsv(client, options);
  ASSIGN_OR_RETURN(const v1::ReadJobMetricsResponse metrics,
                   client.ReadJobMetrics(RequestOf(options)));
  std::string curve;
  if (!metrics.series().empty()) {
    const int width = Terminal::Of(fileno(stdout)).width;
    curve = DrawCurve(metrics.series(0), {.width = width - 1, .height = 10}, InkOfLocale());
  }
  std::string names;
  for (const v1::MetricSeries& series : metrics.series()) {
    absl::StrAppend(&names, series.name(), "\n");
  }
  session.Print(metrics, absl::StrCat(curve, MetricTable(metrics)), names);
  return absl::OkStatus();
}

// ---------------------------------------------------------------- top

struct TopOptions {
  std::string job;  // "": all running jobs
  bool once = false;
};

absl::StatusOr<std::vector<std::string>> JobsToShow(CoordinatorClient& client,
                                                    const TopOptions& options) {
  if (!options.job.empty()) return std::vector<std::string>{options.job};
  v1::ListJobsRequest request;
  request.add_states(v1::RUNNING);
  request.set_view(v1::JOB_VIEW_BASIC);
  ASSIGN_OR_RETURN(const v1::ListJobsResponse running, client.ListJobs(request));
  std::vector<std::string> jobs;
  for (const v1::Job& job : running.jobs()) jobs.push_back(JobIdOf(job.name()));
  return jobs;
}

// Shows the last two seconds repeatedly on a terminal. With --once or without a terminal it prints
// the totals since each job's generation began.
absl::Status Top(const TopOptions& options, Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  const bool once = options.once || session.output() != OutputFormat::kTable ||
                    !Terminal::Of(fileno(stdout)).interactive;
  std::map<std::string, v1::ReadJobTimingResponse> before;
  do {
    ASSIGN_OR_RETURN(const std::vector<std::string> jobs, JobsToShow(client, options));
    std::string text;
    for (const std::string& job : jobs) {
      const auto now = client.ReadJobTiming(job);
      if (!now.ok() && !options.job.empty()) return now.status();
      if (!now.ok()) continue;  // deleted meanwhile
      const auto known = before.find(job);
      const v1::ReadJobTimingResponse shown =
          known == before.end() ? *now : Since(known->second, *now);
      if (once && !options.job.empty()) {
        session.Print(shown, TimingText(job, shown), absl::StrCat(job, "\n"));
        return absl::OkStatus();
      }
      absl::StrAppend(&text, text.empty() ? "" : "\n",
                      jobs.size() > 1 ? absl::StrCat(job, "\n") : "", TimingText(job, shown));
      before[job] = *now;
    }
    if (jobs.empty()) {
      text = absl::StrCat("no job runs at ", client.where(), "; muster list shows waiting jobs\n");
    }
    if (!once) std::fputs("\033[H\033[J", stdout);
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  } while (!once && Wait(session, kTopInterval));
  session.exit_code = session.SignalExitCode();
  return absl::OkStatus();
}

// ---------------------------------------------------------------- links

absl::Status ShowLinks(const std::string& job, const Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  ASSIGN_OR_RETURN(const v1::ReadJobLinksResponse links, client.ReadJobLinks(job));
  const std::string id = JobIdOf(job);
  session.Print(links, LinksText(id, links), absl::StrCat(id, "\n"),
                LinksText(id, links, LinkColumns::kAll));
  return absl::OkStatus();
}

// ---------------------------------------------------------------- trace

struct TraceOptions {
  std::string job;
  int steps = 5;
  std::string file;  // "": the job's id with ".trace.json"
  std::string timeout = "1m";
};

absl::Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("cannot write the trace to ", path, ": ", strerror(errno),
                   "; check that the folder exists, or give another --file"));
}

// Returns no events if the call fails, because the trace is useful without them.
std::vector<v1::JobEvent> EventsOf(CoordinatorClient& client, const std::string& job) {
  auto events = ReadEvents(client, {.job = job, .limit = limits::kPageSizeMax}, /*folds=*/false);
  return events.ok() ? *std::move(events) : std::vector<v1::JobEvent>();
}

absl::Status TraceJob(const TraceOptions& options, const Session& session) {
  const std::string job = JobIdOf(options.job);
  const std::string path = options.file.empty() ? job + ".trace.json" : options.file;
  v1::TraceJobRequest request;
  request.set_name(JobName(job));
  request.set_steps(options.steps);
  absl::Duration timeout;
  if (!absl::ParseDuration(options.timeout, &timeout)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--timeout ", options.timeout, ": expects a duration such as 30s or 2m"));
  }
  request.mutable_timeout()->set_seconds(absl::ToInt64Seconds(timeout));
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  // An empty write finds a wrong path before the trace is recorded.
  RETURN_IF_ERROR(WriteText(path, ""));
  std::fprintf(stderr, "recording the next %d steps of %s...\n", options.steps, job.c_str());
  const absl::StatusOr<v1::TraceJobResponse> trace = client.TraceJob(request);
  if (!trace.ok()) {
    std::remove(path.c_str());
    return trace.status();
  }
  RETURN_IF_ERROR(WriteText(path, TraceJson(job, *trace, EventsOf(client, job))));
  std::fputs(TraceText(*trace).c_str(), stderr);
  std::printf("%s\n", path.c_str());
  std::fputs("open it in https://ui.perfetto.dev\n", stderr);
  return absl::OkStatus();
}

}  // namespace

void AddLookCommands(Command program, Session& session) {
  auto events = std::make_shared<EventOptions>();
  Command command = program.AddCommand("events", "Events of a job, or of the newest jobs",
                                       "muster events char-gpt-7\n  muster events -w");
  command.AddOption("JOB", events->job, "Its id; default: the newest jobs");
  command.AddFlag("-w,--watch", events->watch, "Then print new events");
  command.AddOption("--limit", events->limit, "Number of newest events; default 200").Positive();
  command.SetAction([events, &session] { session.Fail(Events(*events, session)); });

  auto logs = std::make_shared<LogOptions>();
  command = program.AddCommand("logs", "The last log lines of members",
                               "muster logs char-gpt-7 -f\n  muster logs --member ps-0 --lines 20");
  command.AddOption("JOB", logs->job, "Its members, without lines of other jobs");
  command.AddOption("--member", logs->members, "Only this member; may be repeated").OneValueEach();
  command.AddFlag("-f,--follow", logs->follow, "Then print new lines");
  command.AddOption("--lines", logs->lines, "Lines of each member at first; default 100")
      .Positive();
  command.SetAction([logs, &session] { session.Fail(Logs(*logs, session)); });

  auto metrics = std::make_shared<MetricsOptions>();
  command = program.AddCommand("metrics", "Curves of a job's steps and evaluations",
                               "muster metrics char-gpt-7 --series loss,gradient_norm\n"
                               "  muster metrics char-gpt-7 --csv > char-gpt-7.csv\n"
                               "  muster metrics char-gpt-7 --tensorboard runs/char-gpt-7");
  command.AddOption("JOB", metrics->job, "Its id, char-gpt-7").Required();
  command.AddOption("--series", metrics->series, "loss, evaluation_loss, ...; default: all")
      .SplitAt(',')
      .OneValueEach();
  command.AddOption("--from", metrics->from, "First step");
  command.AddOption("--to", metrics->to, "Last step");
  command.AddOption("--points", metrics->points, "Fewer points that keep peaks; default 1,000")
      .Positive();
  command.AddFlag("--csv", metrics->csv, "Print every step as CSV, unless --points");
  command.AddOption("--tensorboard", metrics->tensorboard, "Folder to write an event file to");
  command.SetAction([metrics, &session] { session.Fail(ShowMetrics(*metrics, session)); });

  auto top = std::make_shared<TopOptions>();
  command = program.AddCommand("top", "Time of steps by phase, stragglers and the bottleneck",
                               "muster top char-gpt-7");
  command.AddOption("JOB", top->job, "Its id; default: all running jobs");
  command.AddFlag("--once", top->once, "Print the totals so far, then end");
  command.SetAction([top, &session] { session.Fail(Top(*top, session)); });

  auto links = std::make_shared<std::string>();
  command = program.AddCommand("links", "Transports and traffic of a job's links",
                               "muster links char-gpt-7\n  muster links char-gpt-7 -o wide");
  command.AddOption("JOB", *links, "Its id; it must be running").Required();
  command.SetAction([links, &session] { session.Fail(ShowLinks(*links, session)); });

  auto trace = std::make_shared<TraceOptions>();
  command = program.AddCommand("trace", "Trace a job's next steps on all members, for Perfetto",
                               "muster trace char-gpt-7 --steps 5 -o trace.json");
  command.AddOption("JOB", trace->job, "Its id; it must be running").Required();
  command.AddOption("--steps", trace->steps, "Number of steps; default 5, at most 1,000")
      .Within(1, limits::kTraceStepsMax);
  command.AddOption("-o,--file", trace->file, "Output file; default JOB.trace.json");
  command.AddOption("--timeout", trace->timeout, "Longest recording; default 1m, at most 10m");
  command.SetAction([trace, &session] { session.Fail(TraceJob(*trace, session)); });
}

}  // namespace muster::cli
