#include "cli/text/job_text.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "cli/text/event_fold.h"
#include "lib/job/job_file.h"
#include "lib/job/resource_name.h"
#include "lib/status/utf8.h"
#include "lib/text/byte_size.h"
#include "lib/text/known_loss.h"
#include "lib/text/logical_workers.h"

namespace muster::cli {
namespace {

absl::Time ToTime(const google::protobuf::Timestamp& timestamp) {
  return absl::FromUnixSeconds(timestamp.seconds()) + absl::Nanoseconds(timestamp.nanos());
}

absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

const char* ColorOf(v1::JobState state) {
  switch (state) {
    case v1::SUCCEEDED:
      return "\033[32m";  // green
    case v1::FAILED:
      return "\033[31m";  // red
    case v1::CANCELLED:
    case v1::SUSPENDED:
    case v1::RECOVERING:
      return "\033[33m";  // yellow
    default:
      return "\033[36m";  // cyan
  }
}

std::string LossText(double loss) {
  return std::isfinite(loss) ? absl::StrFormat("%.4g", loss)
                             : absl::StrFormat("%.4g (not finite)", loss);
}

int MostWorkers(const v1::Job& job) {
  const v1::WorkerCount& workers = job.spec().resources().workers();
  return std::max({1, workers.min(), workers.max()});
}

// Returns whether the job has members now. Job.workers and Job.ps do not tell, because a queued or
// suspended job still has those of its last generation.
bool HasMembers(const v1::Job& job) {
  return job.state() != v1::QUEUED && job.state() != v1::SUSPENDED;
}

std::string WorkerText(const v1::Job& job) {
  return absl::StrCat(HasMembers(job) ? job.workers_size() : 0, "/", MostWorkers(job));
}

std::string PsText(const v1::Job& job) {
  if (job.spec().sync().mode() == v1::ALLREDUCE) return "no";
  return absl::StrCat(HasMembers(job) ? job.ps_size() : 0, "/",
                      std::max(1, job.spec().resources().ps()));
}

// Returns why the job waits, and its place in the queue.
std::string WaitingText(const v1::Job& job) {
  const v1::JobWaiting& waiting = job.waiting();
  return absl::StrCat(
      waiting.message(),
      waiting.position() > 0
          ? absl::StrCat(" (", waiting.position(), " of ", waiting.queue_length(), " in the queue)")
          : "");
}

// Returns why the job makes no progress, or its last reason.
std::string WhyText(const v1::Job& job) {
  if (job.has_waiting()) return WaitingText(job);
  return job.has_trouble() ? job.trouble().message() : job.reason();
}

// A job that starts from a checkpoint has a step before it has a loss.
bool ShowsLoss(const v1::JobProgress& progress) { return progress.step() > 0 && HasLoss(progress); }

std::string StateText(const v1::Job& job) {
  const std::string& state = v1::JobState_Name(job.state());
  return job.has_trouble() ? absl::StrCat(state, " (", job.trouble().reason(), ")") : state;
}

std::string LastLossText(const v1::Job& job) {
  return ShowsLoss(job.progress()) ? LossText(job.progress().loss()) : "-";
}

// Returns the used part of a time limit: "1h2m of 12h".
std::string TimeOf(absl::Duration passed, const google::protobuf::Duration& bound) {
  return absl::StrCat(absl::FormatDuration(absl::Trunc(passed, absl::Seconds(1))), " of ",
                      absl::FormatDuration(ToDuration(bound)));
}

std::string Indented(const std::string& text) {
  std::string out;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    absl::StrAppend(&out, "  ", line, "\n");
  }
  return out;
}

void AddLine(std::string& text, absl::string_view label, absl::string_view value) {
  if (!value.empty()) absl::StrAppendFormat(&text, "%-18s %s\n", label, value);
}

// Adds the time limits of the job file that apply in the job's state, and why the coordinator stops
// the job.
void AddTimes(const v1::Job& job, absl::Time now, std::string& text) {
  const v1::JobSpec& spec = job.spec();
  const bool waits = job.state() == v1::QUEUED || job.state() == v1::RECOVERING;
  if (waits && spec.has_start_timeout()) {
    const auto& since = job.has_waits_since() ? job.waits_since() : job.create_time();
    AddLine(text, "Waits",
            absl::StrCat(TimeOf(now - ToTime(since), spec.start_timeout()), " (start_timeout)"));
  }
  if (spec.has_active_deadline() && !IsTerminal(job.state())) {
    absl::Duration active = ToDuration(job.active_before());
    if (job.has_active_since()) active += now - ToTime(job.active_since());
    AddLine(text, "Active",
            absl::StrCat(TimeOf(active, spec.active_deadline()), " (active_deadline)"));
  }
  if (spec.has_ttl_after_finished() && job.has_end_time()) {
    const bool stays = !job.checkpoint().empty() && !spec.checkpoint().delete_after_ttl();
    AddLine(text, "Deleted",
            stays ? "not by ttl_after_finished, because the job has a checkpoint"
                  : FormatUtc(ToTime(job.end_time()) + ToDuration(spec.ttl_after_finished())) +
                        " (ttl_after_finished)");
  }
  if (job.has_stop_cause()) {
    AddLine(text, "Stops",
            absl::StrCat("at its next checkpoint: ", job.stop_cause().message(), " (",
                         job.stop_cause().reason(), ")"));
  }
}

void AddRecoveries(const v1::Job& job, std::string& text) {
  const v1::JobRecovery& recovery = job.recovery();
  if (recovery.rollbacks() > 0) {
    AddLine(text, "Rollbacks",
            absl::StrCat(recovery.rollbacks(), ", without these batches of the data: ",
                         absl::StrJoin(recovery.left_out_batches(), ", ")));
  } else if (!recovery.left_out_batches().empty()) {
    AddLine(text, "Left out",
            absl::StrCat("these batches of the data, as in the job that it continues: ",
                         absl::StrJoin(recovery.left_out_batches(), ", ")));
  }
  if (recovery.count() == 0) return;
  std::string line = absl::StrCat(recovery.count());
  if (recovery.in_row() > 1) {
    absl::StrAppend(&line, ", the last ", recovery.in_row(), " in a row without a new step");
  }
  absl::StrAppend(&line, "; the last one at step ", recovery.step());
  if (recovery.has_resumed_step()) {
    absl::StrAppend(&line, ", resumed at step ", recovery.resumed_step());
  }
  AddLine(text, "Recoveries",
          absl::StrCat(line, "; ", recovery.steps_again(), " steps were repeated in total"));
}

// Returns `url` if its host is an IP address or localhost, otherwise HOST:PORT. A process that
// listens on all interfaces reports its own host name. That name may not resolve elsewhere, but
// `kubectl port-forward` takes the name of a pod.
std::string MetricsAddress(const std::string& url) {
  absl::string_view address = url;
  absl::ConsumePrefix(&address, "http://");
  address = address.substr(0, address.find('/'));
  const bool opens = address.find_first_not_of("0123456789.:") == address.npos ||
                     absl::StartsWith(address, "[") || absl::StartsWith(address, "localhost:");
  return opens ? url : std::string(address);
}

}  // namespace

std::string StepText(const v1::JobProgress& progress) {
  if (progress.total_steps() == 0) return absl::StrCat(progress.step());
  return absl::StrCat(progress.step(), "/", progress.total_steps());
}

bool IsTerminal(v1::JobState state) {
  return state == v1::SUCCEEDED || state == v1::FAILED || state == v1::CANCELLED;
}

std::string ProgressLine(const v1::Job& job, int width, bool color) {
  const v1::JobProgress& progress = job.progress();
  const std::string id = JobIdOf(job.name());
  const std::string state = v1::JobState_Name(job.state());
  std::vector<std::string> parts;
  if (progress.total_steps() > 0) {
    parts.push_back(absl::StrFormat(
        " %3d%% step %s", 100 * progress.step() / progress.total_steps(), StepText(progress)));
  }
  // The trouble comes right after the step and is cut rather than dropped, because it explains a
  // lack of progress.
  if (job.has_trouble()) parts.push_back(absl::StrCat("  TROUBLE: ", job.trouble().message()));
  if (ShowsLoss(progress)) {
    parts.push_back(std::isfinite(progress.loss())
                        ? absl::StrCat("  loss ", LossText(progress.loss()))
                        : absl::StrCat("  LOSS NOT FINITE (", progress.loss(), ")"));
  }
  if (job.state() == v1::RUNNING && progress.samples_per_second() > 0) {
    parts.push_back(absl::StrCat("  ", FormatCount(progress.samples_per_second()), " samples/s"));
  }
  if (job.state() == v1::RUNNING && progress.has_remaining()) {
    parts.push_back(absl::StrCat("  eta ", FormatClock(ToDuration(progress.remaining()))));
  }
  if (!IsTerminal(job.state())) {
    parts.push_back(absl::StrCat("  ", WorkerText(job), " workers ", PsText(job), " ps"));
  }
  int used = static_cast<int>(id.size() + 1 + state.size());
  std::string line = color ? absl::StrCat(id, " ", ColorOf(job.state()), state, "\033[0m")
                           : absl::StrCat(id, " ", state);
  for (const std::string& part : parts) {
    const int room = width - used;
    used += static_cast<int>(part.size());
    if (used <= width) {
      line += part;
    } else {
      if (job.has_trouble() && room > 0) line += part.substr(0, room);
      break;
    }
  }
  return line;
}

std::string JobTable(absl::Span<const v1::Job> jobs, absl::Time now) {
  Table table({"NAME", "STATE", "STEP", "LOSS", "WORKERS", "PS", "AGE"});
  for (const v1::Job& job : jobs) {
    table.Add({JobIdOf(job.name()), StateText(job), StepText(job.progress()), LastLossText(job),
               WorkerText(job), PsText(job), FormatAge(now - ToTime(job.create_time()))});
  }
  return table.ToString();
}

std::string LabelText(const v1::Job& job) {
  const std::map<std::string, std::string> sorted(job.spec().labels().begin(),
                                                  job.spec().labels().end());
  return sorted.empty() ? "-" : absl::StrJoin(sorted, ",", absl::PairFormatter("="));
}

std::string WideJobTable(absl::Span<const v1::Job> jobs, absl::Time now) {
  Table table({"NAME", "STATE", "STEP", "LOSS", "WORKERS", "PS", "AGE", "PRIORITY", "LABELS",
               "CHECKPOINT", "WHY"});
  for (const v1::Job& job : jobs) {
    table.Add({JobIdOf(job.name()), StateText(job), StepText(job.progress()), LastLossText(job),
               WorkerText(job), PsText(job), FormatAge(now - ToTime(job.create_time())),
               absl::StrCat(job.spec().priority()), LabelText(job),
               job.checkpoint().empty() ? "-" : CheckpointIdOf(job.checkpoint()), WhyText(job)});
  }
  return table.ToString();
}

absl::Status SortJobs(const std::string& column, std::vector<v1::Job>& jobs) {
  using Less = bool (*)(const v1::Job&, const v1::Job&);
  static const std::map<std::string, Less> kColumns = {
      {"age", [](const v1::Job& a, const v1::Job& b) { return b.number() < a.number(); }},
      {"name", [](const v1::Job& a, const v1::Job& b) { return a.name() < b.name(); }},
      {"state", [](const v1::Job& a, const v1::Job& b) { return a.state() < b.state(); }},
      {"step", [](const v1::Job& a,
                  const v1::Job& b) { return a.progress().step() < b.progress().step(); }},
      {"loss", [](const v1::Job& a,
                  const v1::Job& b) { return a.progress().loss() < b.progress().loss(); }},
      {"priority", [](const v1::Job& a,
                      const v1::Job& b) { return a.spec().priority() < b.spec().priority(); }},
      {"queue", [](const v1::Job& a,
                   const v1::Job& b) { return a.waiting().position() < b.waiting().position(); }},
  };
  const bool reversed = absl::StartsWith(column, "-");
  const auto found = kColumns.find(column.substr(reversed ? 1 : 0));
  if (found == kColumns.end()) {
    const auto names = [](std::string* out, const auto& entry) { out->append(entry.first); };
    return absl::InvalidArgumentError(absl::StrCat("--sort ", column, ": the columns are ",
                                                   absl::StrJoin(kColumns, ", ", names),
                                                   "; a minus before one reverses the order"));
  }
  const Less less = found->second;
  std::ranges::stable_sort(
      jobs, [&](const v1::Job& a, const v1::Job& b) { return reversed ? less(b, a) : less(a, b); });
  return absl::OkStatus();
}

std::string MemberTable(absl::Span<const v1::Member> members, absl::Time now) {
  Table table({"NAME", "ROLE", "HOST", "PID", "JOBS", "SEEN", "METRICS"});
  for (const v1::Member& member : members) {
    table.Add({member.name(), member.role() == v1::PS ? "ps" : "worker", member.host(),
               absl::StrCat(member.pid()),
               absl::StrCat(member.jobs().empty() ? "-" : absl::StrJoin(member.jobs(), ","),
                            member.leaving() ? " (leaving)" : ""),
               FormatAge(now - ToTime(member.report_time())),
               MetricsAddress(member.metrics_url())});
  }
  return table.ToString();
}

std::string InsecureNotice(const v1::ListMembersResponse& fleet) {
  std::vector<std::string> who;
  if (fleet.coordinator_insecure()) who.push_back("the coordinator");
  int members = 0;
  for (const v1::Member& member : fleet.members()) members += member.insecure() ? 1 : 0;
  if (members > 0) {
    who.push_back(absl::StrCat(members, " of ", fleet.members_size(), " members"));
  }
  if (who.empty()) return "";
  return absl::StrCat("--insecure: ", absl::StrJoin(who, ", "),
                      "; any process that reaches a port may do everything\n");
}

std::string CheckpointTable(absl::Span<const v1::Checkpoint> checkpoints, absl::Time now) {
  Table table({"JOB", "STEP", "SIZE", "AGE", "DIRECTORY"});
  for (const v1::Checkpoint& checkpoint : checkpoints) {
    table.Add({checkpoint.job(), absl::StrCat(checkpoint.step()),
               FormatBytes(checkpoint.size_bytes()),
               FormatAge(now - ToTime(checkpoint.create_time())), checkpoint.directory()});
  }
  return table.ToString();
}

std::string EventLine(const v1::JobEvent& event) {
  return absl::StrCat(FormatUtc(ToTime(event.time())), "  ", v1::JobState_Name(event.state()), "  ",
                      event.reason(), event.message().empty() ? "" : "  ", event.message());
}

// Returns "8, on 3 workers: 4, 2, 2", or "" without logical workers.
std::string LogicalWorkersText(const v1::Job& job) {
  const int logical = job.spec().resources().workers().logical(), workers = job.workers_size();
  if (logical == 0) return "";
  if (workers == 0 || workers > logical) return absl::StrCat(logical);
  return absl::StrCat(logical, ", on ", workers, workers == 1 ? " worker: " : " workers: ",
                      LogicalWorkersOfEach(logical, workers));
}

std::string DescribeJob(const v1::Job& job, absl::Span<const v1::JobEvent> events, absl::Time now) {
  const v1::JobProgress& progress = job.progress();
  std::string text;
  AddLine(text, "Name", JobIdOf(job.name()));
  AddLine(
      text, "State",
      absl::StrCat(v1::JobState_Name(job.state()), job.reason().empty() ? "" : " (", job.reason(),
                   job.reason().empty() ? "" : ")", job.suspend_requested() ? ", suspending" : ""));
  AddLine(text, "Message", job.message());
  AddLine(text, "Trouble", job.trouble().message());
  if (job.has_waiting()) AddLine(text, "Waits", WaitingText(job));
  if (!job.spec().labels().empty()) AddLine(text, "Labels", LabelText(job));
  AddLine(text, "Created",
          absl::StrCat(FormatUtc(ToTime(job.create_time())), " (",
                       FormatAge(now - ToTime(job.create_time())), " ago)"));
  if (job.has_start_time()) AddLine(text, "Started", FormatUtc(ToTime(job.start_time())));
  if (job.has_end_time()) AddLine(text, "Ended", FormatUtc(ToTime(job.end_time())));
  AddTimes(job, now, text);
  AddLine(text, "Generation", absl::StrCat(job.generation()));
  AddLine(text, "Workers", absl::StrJoin(job.workers(), ", "));
  AddLine(text, "Logical workers", LogicalWorkersText(job));
  AddLine(text, "Parameter servers",
          job.spec().sync().mode() == v1::ALLREDUCE ? "none: workers own the parameters (allreduce)"
                                                    : absl::StrJoin(job.ps(), ", "));
  AddLine(text, "Step", StepText(progress));
  if (ShowsLoss(progress)) {
    AddLine(
        text, "Loss",
        absl::StrCat(LossText(progress.loss()), " (first ", LossText(progress.first_loss()), ")"));
  }
  const std::map<std::string, double> metrics(progress.metrics().begin(), progress.metrics().end());
  for (const auto& [name, mean] : metrics) {
    AddLine(text, absl::StrCat("Metric ", Printable(name)), LossText(mean));
  }
  if (ShowsLoss(progress) || (progress.step() > 0 && progress.has_update_time())) {
    AddLine(text, "Learning rate", LossText(progress.learning_rate()));
    AddLine(text, "Gradient norm", LossText(progress.gradient_norm()));
  }
  if (progress.has_evaluation_loss()) {
    AddLine(text, "Evaluation loss",
            absl::StrCat(LossText(progress.evaluation_loss()), " at step ",
                         progress.evaluation_step()));
  }
  if (progress.has_evaluation_accuracy()) {
    AddLine(text, "Accuracy", absl::StrFormat("%.2f %%", 100 * progress.evaluation_accuracy()));
  }
  if (job.state() == v1::RUNNING) {
    AddLine(text, "Throughput",
            absl::StrCat(FormatCount(progress.samples_per_second()), " samples/s"));
    if (progress.has_remaining()) {
      AddLine(text, "Remaining", FormatClock(ToDuration(progress.remaining())));
    }
  }
  AddRecoveries(job, text);
  AddLine(text, "Checkpoint", CheckpointIdOf(job.checkpoint()));
  for (const std::string& warning : job.warnings()) AddLine(text, "Warning", warning);
  absl::StrAppend(&text, "Spec\n", Indented(ToYaml(job.spec())));
  Table table({"TIME", "STATE", "REASON", "MESSAGE"});
  for (const v1::JobEvent& event : Folded(events)) {
    table.Add({FormatUtc(ToTime(event.time())), v1::JobState_Name(event.state()), event.reason(),
               event.message()});
  }
  absl::StrAppend(&text, "Events\n", Indented(table.ToString()));
  return text;
}

std::string WarningLines(const std::vector<std::string>& warnings) {
  std::string text;
  for (const std::string& warning : warnings) absl::StrAppend(&text, "warning: ", warning, "\n");
  return text;
}

std::string WarningLine(const v1::JobEvent& event) {
  static constexpr absl::string_view kWarnings[] = {
      "CHECKPOINT_DAMAGED",  "CHECKPOINT_FAILED", "CHECKPOINT_UNREADABLE",
      "DEVICE_KIND_CHANGED", "LOSS_SCALE_ALARM",  "MEMORY_TOO_SMALL",
      "NONFINITE_LOSS",      "OTHER_DATA",        "SAMPLES_REPLACED",
      "SHARD_SENT",          "STEPS_LOST",        "STEPS_SKIPPED",
      "WORKER_CANNOT_JOIN",
  };
  if (IsTerminal(event.state()) || !absl::c_linear_search(kWarnings, event.reason())) return "";
  return absl::StrCat("warning: ", event.reason(), ": ", event.message());
}

bool TrainedWell(const v1::Job& job) {
  return job.state() == v1::SUCCEEDED && job.reason() != "NONFINITE_LOSS";
}

std::string JobSummary(const v1::Job& job, const std::string& checkpoint) {
  const v1::JobProgress& progress = job.progress();
  std::string text = absl::StrCat(v1::JobState_Name(job.state()), "  ", JobIdOf(job.name()), "  ",
                                  progress.step(), progress.step() == 1 ? " step" : " steps");
  if (job.has_start_time() && job.has_end_time()) {
    absl::StrAppend(&text, " in ", FormatClock(ToTime(job.end_time()) - ToTime(job.start_time())));
  }
  absl::StrAppend(&text, "\n");
  if (ShowsLoss(progress)) {
    AddLine(text, "first loss", LossText(progress.first_loss()));
    AddLine(text, "last loss", LossText(progress.loss()));
  }
  if (progress.has_evaluation_loss()) {
    AddLine(text, "evaluation loss", LossText(progress.evaluation_loss()));
  }
  if (progress.has_evaluation_accuracy()) {
    AddLine(text, "accuracy", absl::StrFormat("%.2f %%", 100 * progress.evaluation_accuracy()));
  }
  AddLine(text, "checkpoint", checkpoint);
  return text;
}

}  // namespace muster::cli
