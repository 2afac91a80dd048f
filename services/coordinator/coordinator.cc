#include "services/coordinator/coordinator.h"

#include <glog/logging.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/graph/zoo/zoo.h"
#include "lib/job/job_validation.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "services/coordinator/initial_values.h"
#include "services/coordinator/job_plan.h"
#include "services/coordinator/proto_time.h"
#include "services/coordinator/scheduler.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kReportInterval = absl::Seconds(1);
constexpr absl::Duration kWatchInterval = absl::Seconds(1);
// A job that could have more workers than are there waits this long for those that are still
// attaching.
constexpr absl::Duration kGatherTime = absl::Seconds(2);
constexpr char kDeletedSuffix[] = ".deleted";

absl::Status FromCode(const std::error_code& error, const std::string& path) {
  if (!error) return absl::OkStatus();
  return WithReason(absl::ErrnoToStatus(error.value(), path), "STATE_DIR_FAILED");
}

// The same spec is the same bytes, whatever the order of its maps.
std::string Fingerprint(const v1::JobSpec& spec) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  spec.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

absl::Status NotWanted(const CheckpointRound& round) {
  return WithReason(absl::FailedPreconditionError(
                        absl::StrCat(JobName(round.plan().job()), ": the checkpoint of step ",
                                     round.step(), " is not wanted any more")),
                    "STALE_SNAPSHOT");
}

// Errors that are the sender's: the round goes on without that stream.
bool HarmsOnlyTheStream(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsCancelled(status) || absl::IsDataLoss(status) ||
         absl::IsFailedPrecondition(status);
}

}  // namespace

// Holds the mutex; when it ends, what must happen outside is done.
class ABSL_SCOPED_LOCKABLE Coordinator::Turn {
 public:
  explicit Turn(Coordinator* coordinator)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(coordinator->mu_) ABSL_NO_THREAD_SAFETY_ANALYSIS
      : coordinator_(coordinator) {
    coordinator_->mu_.Lock();
  }
  ~Turn() ABSL_UNLOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    auto to_wake = std::exchange(coordinator_->to_wake_, {});
    auto ended = std::exchange(coordinator_->ended_rounds_, {});
    coordinator_->mu_.Unlock();
    for (const auto& waker : to_wake) waker->Wake();
    for (auto& [round, outcome] : ended) round->Resolve(std::move(outcome));
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Coordinator* const coordinator_;
};

// ---------------------------------------------------------------- opening

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Open(Options options) {
  CHECK(options.metrics != nullptr);
  std::error_code error;
  options.state_dir = fs::absolute(options.state_dir, error).lexically_normal().string();
  fs::create_directories(fs::path(options.state_dir) / "jobs", error);
  RETURN_IF_ERROR(Annotate(FromCode(error, options.state_dir), "--state_dir"));
  std::unique_ptr<Coordinator> coordinator(new Coordinator(std::move(options)));
  Coordinator* const core = coordinator.get();
  ASSIGN_OR_RETURN(
      core->store_,
      Store::Open(core->options_.state_dir + "/coordinator.db", [core](absl::Duration took) {
        core->metrics_.store_commit_seconds.Observe(absl::ToDoubleSeconds(took));
      }));
  core->metrics_.term.Set(core->term());
  Turn turn(core);
  RETURN_IF_ERROR(core->Load());
  return coordinator;
}

Coordinator::Coordinator(Options options)
    : options_(std::move(options)), metrics_(options_.metrics), leases_(options_.lease) {}

absl::Status Coordinator::Load() {
  ASSIGN_OR_RETURN(std::vector<StoredJob> stored, store_->LoadJobs());
  for (StoredJob& job : stored) {
    const std::string name = job.record.name();
    RETURN_IF_ERROR(Annotate(LoadJob(std::move(job)), name));
  }
  std::error_code error;
  for (const auto& folder : fs::directory_iterator(options_.state_dir + "/jobs", error)) {
    if (folder.path().extension() == kDeletedSuffix) fs::remove_all(folder.path(), error);
  }
  LOG(INFO) << "term " << term() << ": " << jobs_.size() << " jobs, " << active_.size()
            << " of them active";
  return absl::OkStatus();
}

absl::Status Coordinator::LoadJob(StoredJob stored) {
  const v1::Job& record = stored.record;
  const uint64_t number = record.number();
  const std::string id = JobIdOf(record.name());
  auto entry = std::make_unique<Entry>(Entry{.job = Job(record, stored.plan, term(), Now()),
                                             .origin = stored.origin,
                                             .queued_since = Now()});
  entry->published = record.state();
  number_by_id_[id] = number;
  Entry& loaded = *(jobs_[number] = std::move(entry));
  if (loaded.job.active()) active_.insert(number);
  if (!IsTerminal(loaded.job.state()) && record.generation() > 0) {
    RETURN_IF_ERROR(OpenMetricsLog(loaded));
    loaded.job.Restore(loaded.metrics_log->history());
  }
  return TakeUpCheckpoints(loaded);
}

// A checkpoint exists once its folder is renamed: the store may not have heard of it, or of its
// removal.
absl::Status Coordinator::TakeUpCheckpoints(Entry& entry) {
  const std::string id = JobIdOf(entry.job.record().name());
  ASSIGN_OR_RETURN(const std::vector<int64_t> on_disk, ListCheckpointSteps(CheckpointFolder(id)));
  ASSIGN_OR_RETURN(const std::vector<v1::Checkpoint> stored,
                   store_->Checkpoints(entry.job.record().number()));
  std::vector<int64_t> gone;
  std::set<int64_t> known;
  for (const v1::Checkpoint& checkpoint : stored) {
    known.insert(checkpoint.step());
    if (!std::ranges::binary_search(on_disk, checkpoint.step())) gone.push_back(checkpoint.step());
  }
  if (!gone.empty()) {
    RETURN_IF_ERROR(store_->Commit({.record = &entry.job.record(), .checkpoints_removed = gone}));
  }
  for (int64_t step : on_disk) {
    if (entry.job.active() && step > entry.job.plan()->first_step()) entry.committed.insert(step);
    if (known.contains(step)) continue;
    const auto reader = CheckpointReader::Open(CheckpointPath(CheckpointFolder(id), step));
    if (!reader.ok()) {
      LOG(ERROR) << JobName(id) << ": checkpoint of step " << step
                 << " left alone: " << reader.status();
      entry.committed.erase(step);
      continue;
    }
    const v1::Checkpoint checkpoint = (*reader)->ToProto(id);
    entry.job.CheckpointCommitted(checkpoint, Now());
    Perform(entry, {.checkpoint = &checkpoint});
  }
  if (!entry.job.active()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<v1::Checkpoint> own,
                   store_->Checkpoints(entry.job.record().number()));
  if (!own.empty()) {
    metrics_.CheckpointCommitted(
        id, own.back().step(),
        absl::ToDoubleSeconds(FromProto(own.back().create_time()) - absl::UnixEpoch()));
  }
  return absl::OkStatus();
}

std::string Coordinator::JobFolder(const std::string& job) const {
  return absl::StrCat(options_.state_dir, "/jobs/", job);
}

std::string Coordinator::CheckpointFolder(const std::string& job) const {
  return JobFolder(job) + "/checkpoints";
}

absl::Status Coordinator::OpenMetricsLog(Entry& entry) {
  if (entry.metrics_log != nullptr) return absl::OkStatus();
  const std::string folder = JobFolder(JobIdOf(entry.job.record().name()));
  std::error_code error;
  fs::create_directories(folder, error);
  RETURN_IF_ERROR(FromCode(error, folder));
  ASSIGN_OR_RETURN(entry.metrics_log, MetricsLog::Open(folder + "/metrics.jsonl"));
  return absl::OkStatus();
}

// ---------------------------------------------------------------- changes

absl::StatusOr<Coordinator::Entry*> Coordinator::Find(const std::string& name) {
  auto number = number_by_id_.find(JobIdOf(name));
  if (number == number_by_id_.end()) {
    return WithReason(absl::NotFoundError(absl::StrCat("no job '", JobIdOf(name), "'")),
                      "JOB_NOT_FOUND");
  }
  return jobs_.at(number->second).get();
}

void Coordinator::Perform(Entry& entry) { Perform(entry, Extra()); }

void Coordinator::Perform(Entry& entry, const Extra& extra) {
  Job::Effects effects = entry.job.TakeEffects();
  if (!effects.events.empty()) {
    const absl::Status stored = store_->Commit({.record = &entry.job.record(),
                                                .events = effects.events,
                                                .plan = extra.plan,
                                                .checkpoint = extra.checkpoint});
    if (!stored.ok()) LOG(FATAL) << entry.job.record().name() << " cannot be stored: " << stored;
  }
  Publish(entry, std::move(effects));
}

absl::StatusOr<v1::Job> Coordinator::ChangeByUser(const std::string& name,
                                                  const std::function<absl::Status(Job&)>& change) {
  Turn turn(this);
  ASSIGN_OR_RETURN(Entry* const entry, Find(name));
  Job changed = entry->job;
  RETURN_IF_ERROR(change(changed));
  Job::Effects effects = changed.TakeEffects();
  if (!effects.events.empty()) {
    RETURN_IF_ERROR(store_->Commit({.record = &changed.record(), .events = effects.events}));
  }
  entry->job = std::move(changed);
  Publish(*entry, std::move(effects));
  return entry->job.record();
}

void Coordinator::Publish(Entry& entry, Job::Effects effects) {
  const v1::Job& record = entry.job.record();
  Log(entry, effects);
  for (Job::Outgoing& outgoing : effects.directives) {
    Send(outgoing.member, std::move(outgoing.directive));
  }
  if (effects.events.empty()) return;
  WakeWatches(entry);
  if (entry.job.state() == v1::QUEUED) entry.queued_since = Now();
  if (entry.job.active()) {
    active_.insert(record.number());
    return;
  }
  active_.erase(record.number());
  for (auto it = entry.rounds.begin(); it != entry.rounds.end();) {
    it = EndRound(entry, it, NotWanted(*it->second));
  }
  entry.abandoned.clear();
  entry.committed.clear();
  entry.metrics_log.reset();
  metrics_.ForgetJob(JobIdOf(record.name()));
}

void Coordinator::Log(Entry& entry, const Job::Effects& effects) {
  for (const v1::JobEvent& event : effects.events) {
    LOG(INFO) << entry.job.record().name() << " " << v1::JobState_Name(event.state()) << " "
              << event.reason() << ": " << event.message();
    if (event.state() != entry.published) {
      metrics_.CountTransition(entry.published, event.state(), event.reason());
    }
    entry.published = event.state();
  }
  if (effects.steps.empty() && effects.evaluations.empty()) return;
  absl::Status appended = OpenMetricsLog(entry);
  if (appended.ok()) appended = entry.metrics_log->Append(effects.steps, effects.evaluations);
  if (!appended.ok()) {
    LOG_EVERY_N(ERROR, 100) << "metrics.jsonl: " << appended;
  }
}

void Coordinator::Send(const std::string& member, v1::Directive directive) {
  auto it = attachments_.find(member);
  if (it == attachments_.end()) return;
  directive.set_term(term());
  it->second->Send(std::move(directive));
  to_wake_.push_back(it->second->waker());
}

void Coordinator::WakeWatches(Entry& entry) {
  std::erase_if(entry.watches, [](const auto& watch) { return watch.expired(); });
  for (const auto& weak : entry.watches) {
    if (auto watch = weak.lock()) {
      watch->due_ = true;
      to_wake_.push_back(watch->waker_);
    }
  }
}

// ---------------------------------------------------------------- users

absl::StatusOr<std::optional<v1::Job>> Coordinator::FindRequest(const v1::CreateJobRequest& request,
                                                                const std::string& fingerprint) {
  if (request.request_id().empty() || request.validate_only()) return std::nullopt;
  ASSIGN_OR_RETURN(const auto earlier, store_->FindRequest(request.request_id()));
  if (!earlier) return std::nullopt;
  if (earlier->fingerprint != fingerprint) {
    return WithReason(absl::AlreadyExistsError(
                          absl::StrCat("request_id '", request.request_id(), "' was used for ",
                                       JobName(earlier->job), " with another spec")),
                      "REQUEST_ID_REUSED");
  }
  ASSIGN_OR_RETURN(Entry* const entry, Find(earlier->job));
  return entry->job.record();
}

absl::StatusOr<v1::Job> Coordinator::CreateJob(const v1::CreateJobRequest& request) {
  const std::string fingerprint = Fingerprint(request.spec());
  {
    Turn turn(this);
    ASSIGN_OR_RETURN(auto earlier, FindRequest(request, fingerprint));
    if (earlier) return *std::move(earlier);
  }
  const SubmissionContext context{
      .data_visible = options_.data_visible,
      .find_checkpoint =
          [this](const CheckpointRef& reference) -> absl::StatusOr<SubmissionContext::Found> {
        Turn turn(this);
        ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, FindCheckpoint(reference));
        return SubmissionContext::Found{checkpoint.name(), checkpoint.directory()};
      }};
  ASSIGN_OR_RETURN(CheckedSpec checked,
                   CheckSubmission(request.spec(), request.request_id(), context));
  v1::Job record;
  *record.mutable_spec() = std::move(checked.spec);
  record.set_state(v1::QUEUED);
  record.set_reason("SUBMITTED");
  record.set_message("waits for members");
  *record.mutable_create_time() = ToProto(Now());
  record.mutable_progress()->set_step(checked.origin.first_step);
  record.mutable_warnings()->Add(checked.warnings.begin(), checked.warnings.end());
  if (request.validate_only()) return record;
  const std::string models = options_.state_dir + "/models";
  if (!checked.initial_values.empty()) {
    ASSIGN_OR_RETURN(checked.origin.restore,
                     WriteInitialValues(models, record.spec(),
                                        {.graph = checked.origin.graph,
                                         .initial_values = std::move(checked.initial_values)}));
  }
  absl::Cleanup forget = [&] { RemoveInitialValues(models, checked.origin.restore); };

  Turn turn(this);
  ASSIGN_OR_RETURN(auto earlier, FindRequest(request, fingerprint));
  if (earlier) return *std::move(earlier);
  const int64_t queued = std::ranges::count_if(
      jobs_, [](const auto& job) { return job.second->job.state() == v1::QUEUED; });
  if (queued >= limits::kJobsQueuedMax) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                          queued, " jobs are queued already (the limit): cancel some or wait")),
                      "QUEUE_FULL");
  }
  ASSIGN_OR_RETURN(record, store_->AddJob({.record = record,
                                           .origin = checked.origin,
                                           .request_id = request.request_id(),
                                           .fingerprint = fingerprint}));
  number_by_id_[JobIdOf(record.name())] = record.number();
  jobs_[record.number()] = std::make_unique<Entry>(Entry{.job = Job(record, nullptr, term(), Now()),
                                                         .origin = checked.origin,
                                                         .queued_since = Now(),
                                                         .published = v1::QUEUED});
  std::move(forget).Cancel();
  LOG(INFO) << record.name() << " QUEUED SUBMITTED";
  return record;
}

absl::StatusOr<v1::Job> Coordinator::GetJob(const std::string& name) {
  Turn turn(this);
  ASSIGN_OR_RETURN(Entry* const entry, Find(name));
  return entry->job.record();
}

absl::StatusOr<v1::ListJobsResponse> Coordinator::ListJobs(const v1::ListJobsRequest& request) {
  uint64_t before = std::numeric_limits<uint64_t>::max();
  std::vector<FieldFault> faults;
  if (request.page_size() < 0) {
    faults.push_back(
        {"page_size", absl::StrCat("must not be negative (is ", request.page_size(), ")")});
  }
  if (!request.page_token().empty() && !absl::SimpleAtoi(request.page_token(), &before)) {
    faults.push_back({"page_token", "is not from an answer of ListJobs"});
  }
  if (!faults.empty()) return FaultsToStatus(faults, "INVALID_REQUEST");
  const int page_size = request.page_size() == 0
                            ? limits::kPageSizeDefault
                            : std::min(request.page_size(), limits::kPageSizeMax);
  Turn turn(this);
  v1::ListJobsResponse response;
  for (auto it = jobs_.rbegin(); it != jobs_.rend(); ++it) {
    const v1::Job& record = it->second->job.record();
    if (it->first >= before) continue;
    if (!request.states().empty() &&
        std::ranges::count(request.states(), static_cast<int>(record.state())) == 0) {
      continue;
    }
    if (response.jobs_size() == page_size) {
      response.set_next_page_token(absl::StrCat(response.jobs().rbegin()->number()));
      break;
    }
    *response.add_jobs() = record;
  }
  return response;
}

absl::StatusOr<v1::Job> Coordinator::CancelJob(const std::string& name) {
  return ChangeByUser(name, [this](Job& job) { return job.Cancel(Now()); });
}

absl::StatusOr<v1::Job> Coordinator::SuspendJob(const std::string& name) {
  return ChangeByUser(name, [this](Job& job) { return job.Suspend(Now()); });
}

absl::StatusOr<v1::Job> Coordinator::ResumeJob(const v1::ResumeJobRequest& request) {
  return ChangeByUser(request.name(), [&](Job& job) -> absl::Status {
    if (!request.has_resources()) return job.Resume(nullptr, Now());
    v1::JobSpec spec = job.record().spec();
    *spec.mutable_resources() = request.resources();
    if (auto faults = ValidateJobSpec(spec); !faults.empty()) return FaultsToStatus(faults);
    FillDefaults(spec);
    return job.Resume(&spec.resources(), Now());
  });
}

absl::Status Coordinator::DeleteJob(const std::string& name) {
  std::string doomed, initial_values;
  {
    Turn turn(this);
    ASSIGN_OR_RETURN(Entry* const entry, Find(name));
    initial_values = entry->origin.restore;
    const v1::Job record = entry->job.record();
    if (!IsTerminal(record.state())) {
      return WithReason(absl::FailedPreconditionError(
                            absl::StrCat(record.name(), " has not ended (",
                                         v1::JobState_Name(record.state()), "): cancel it first")),
                        "JOB_NOT_FINISHED");
    }
    const std::string id = JobIdOf(record.name());
    doomed = JobFolder(id) + kDeletedSuffix;
    std::error_code error;
    if (fs::exists(JobFolder(id), error)) fs::rename(JobFolder(id), doomed, error);
    RETURN_IF_ERROR(FromCode(error, JobFolder(id)));
    RETURN_IF_ERROR(store_->DeleteJob(record.number()));
    WakeWatches(*entry);
    number_by_id_.erase(id);
    jobs_.erase(record.number());
    LOG(INFO) << record.name() << " deleted";
  }
  RemoveInitialValues(options_.state_dir + "/models", initial_values);
  std::error_code error;
  fs::remove_all(doomed, error);
  if (error) LOG(ERROR) << doomed << " is left over: " << error.message();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<JobWatch>> Coordinator::WatchJob(
    const v1::WatchJobRequest& request, std::shared_ptr<StreamWaker> waker) {
  Turn turn(this);
  ASSIGN_OR_RETURN(Entry* const entry, Find(request.name()));
  std::shared_ptr<JobWatch> watch(
      new JobWatch(entry->job.record(), request.revision(), std::move(waker)));
  entry->watches.push_back(watch);
  return watch;
}

absl::StatusOr<std::optional<Coordinator::WatchAnswer>> Coordinator::NextOf(JobWatch& watch) {
  Turn turn(this);
  auto it = jobs_.find(watch.number_);
  if (it == jobs_.end()) {
    return WithReason(absl::NotFoundError(absl::StrCat(watch.name_, " was deleted")),
                      "JOB_NOT_FOUND");
  }
  if (!watch.due_) return std::nullopt;
  watch.due_ = false;
  WatchAnswer answer;
  *answer.response.mutable_job() = it->second->job.record();
  ASSIGN_OR_RETURN(const auto events, store_->Events(watch.number_, watch.revision_));
  for (const v1::JobEvent& event : events) {
    *answer.response.add_events() = event;
    watch.revision_ = event.revision();
  }
  answer.last = IsTerminal(it->second->job.state());
  return answer;
}

// ---------------------------------------------------------------- checkpoints, for users

absl::StatusOr<std::vector<v1::Checkpoint>> Coordinator::ListCheckpoints(
    const std::string& parent) {
  Turn turn(this);
  if (!parent.empty()) {
    ASSIGN_OR_RETURN(Entry* const entry, Find(parent));
    return store_->Checkpoints(entry->job.record().number());
  }
  std::vector<v1::Checkpoint> all;
  for (const auto& [number, entry] : jobs_) {
    ASSIGN_OR_RETURN(const auto some, store_->Checkpoints(number));
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

absl::StatusOr<v1::Checkpoint> Coordinator::FindCheckpoint(const CheckpointRef& reference) {
  ASSIGN_OR_RETURN(Entry* const entry, Find(reference.job));
  ASSIGN_OR_RETURN(const auto checkpoints, store_->Checkpoints(entry->job.record().number()));
  for (auto it = checkpoints.rbegin(); it != checkpoints.rend(); ++it) {
    if (!reference.step || it->step() == *reference.step) return *it;
  }
  return WithReason(
      absl::NotFoundError(reference.step
                              ? absl::StrCat("job '", reference.job, "' has no checkpoint of step ",
                                             *reference.step)
                              : absl::StrCat("job '", reference.job, "' has no checkpoint yet")),
      "CHECKPOINT_NOT_FOUND");
}

absl::StatusOr<v1::Checkpoint> Coordinator::GetCheckpoint(const std::string& name) {
  const auto reference = ParseCheckpointRef(name);
  if (!reference) {
    return FaultsToStatus(
        {{"name", absl::StrCat("'", name, "' is not jobs/J/checkpoints/S, J@S or J")}},
        "INVALID_REQUEST");
  }
  Turn turn(this);
  return FindCheckpoint(*reference);
}

absl::StatusOr<int64_t> Coordinator::RequestCheckpoint(const std::string& job) {
  Turn turn(this);
  ASSIGN_OR_RETURN(Entry* const entry, Find(job));
  absl::StatusOr<int64_t> step = entry->job.RequestCheckpoint(Now());
  Perform(*entry);
  return step;
}

absl::StatusOr<std::optional<v1::Checkpoint>> Coordinator::AwaitCheckpoint(const std::string& job,
                                                                           int64_t step,
                                                                           absl::Duration timeout) {
  Turn turn(this);
  auto newest = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> int64_t {
    const auto entry = Find(job);
    if (!entry.ok()) return -1;
    const auto reference = ParseCheckpointRef((*entry)->job.record().checkpoint());
    return reference ? reference->step.value_or(-1) : -1;
  };
  auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto entry = Find(job);
    return !entry.ok() || (*entry)->job.state() != v1::RUNNING || newest() >= step;
  };
  if (!mu_.AwaitWithTimeout(absl::Condition(&settled), timeout)) return std::nullopt;
  ASSIGN_OR_RETURN(Entry* const entry, Find(job));
  const v1::Job& record = entry->job.record();
  if (newest() < step) {
    return WithReason(
        absl::AbortedError(absl::StrCat(record.name(), " stopped before step ", step, " (",
                                        v1::JobState_Name(record.state()), ")")),
        "JOB_NOT_RUNNING");
  }
  return FindCheckpoint(*ParseCheckpointRef(record.checkpoint()));
}

// ---------------------------------------------------------------- members

std::vector<Coordinator::Entry*> Coordinator::ActiveJobs() {
  std::vector<Entry*> jobs;
  for (uint64_t number : active_) jobs.push_back(jobs_.at(number).get());
  return jobs;
}

absl::StatusOr<std::shared_ptr<Attachment>> Coordinator::Attach(
    const v1::MemberReport& report, std::shared_ptr<StreamWaker> waker) {
  if (!report.has_hello()) {
    return WithReason(absl::InvalidArgumentError("the first report of a stream must carry hello"),
                      "HELLO_INVALID");
  }
  const v1::Hello& hello = report.hello();
  Turn turn(this);
  ASSIGN_OR_RETURN(const LeaseTable::Arrival arrival, leases_.Attach(hello, Now()));
  CloseAttachment(
      hello.member(),
      WithReason(absl::FailedPreconditionError(absl::StrCat(
                     hello.member(), ": a newer stream has taken the place of this one")),
                 "REPLACED"));
  if (arrival == LeaseTable::Arrival::kReplaced) {
    LoseMember(hello.member(), "a new process has taken its place");
  }
  auto attachment = std::make_shared<Attachment>(hello.member(), std::move(waker));
  attachments_[hello.member()] = attachment;
  LOG(INFO) << hello.member() << " attached (" << v1::Role_Name(hello.role()) << ", "
            << hello.host() << ", pid " << hello.pid() << ")";
  v1::Directive welcome;
  welcome.mutable_welcome()->set_lease_millis(absl::ToInt64Milliseconds(options_.lease));
  welcome.mutable_welcome()->set_report_millis(
      absl::ToInt64Milliseconds(std::min(kReportInterval, options_.lease / 3)));
  Send(hello.member(), std::move(welcome));
  for (Entry* entry : ActiveJobs()) entry->job.Reattached(hello.member());
  TakeReport(hello.member(), report);
  return attachment;
}

absl::Status Coordinator::Report(Attachment& attachment, const v1::MemberReport& report) {
  Turn turn(this);
  if (absl::Status closed = attachment.closed(); !closed.ok()) return closed;
  TakeReport(attachment.member(), report);
  return absl::OkStatus();
}

void Coordinator::TakeReport(const std::string& member, const v1::MemberReport& report) {
  absl::btree_map<std::string, const v1::JobReport*>
      newest;  // a member may still hold an older generation
  for (const v1::JobReport& job : report.jobs()) {
    const v1::JobReport*& known = newest[job.job()];
    if (known == nullptr || known->generation() < job.generation()) known = &job;
  }
  std::vector<std::string> jobs;
  for (const auto& [id, job] : newest) jobs.push_back(id);
  leases_.Renew(member, std::move(jobs), Now());

  for (const auto& [id, job] : newest) {
    if (auto entry = Find(id); entry.ok()) {
      (*entry)->job.Report(member, job, Now());
      TakeSnapshotFailures(**entry, member, *job);
      Perform(**entry);
    } else {
      v1::Directive forget;
      forget.set_job(id);
      forget.set_generation(job->generation());
      forget.mutable_release();
      Send(member, std::move(forget));
    }
  }
  for (Entry* entry : ActiveJobs()) {
    if (!entry->job.Uses(member) || newest.contains(JobIdOf(entry->job.record().name()))) continue;
    entry->job.Report(member, nullptr, Now());
    Perform(*entry);
  }
}

// A shard that has given up a periodic or final snapshot never ends its stream: without this the
// others, which wait for the commit, would wait for ever. (One on demand is the job's to judge.)
void Coordinator::TakeSnapshotFailures(Entry& entry, const std::string& member,
                                       const v1::JobReport& report) {
  if (!entry.job.Uses(member) || report.generation() != entry.job.record().generation()) return;
  for (const v1::SnapshotReport& snapshot : report.snapshots()) {
    if (snapshot.outcome() != v1::SNAPSHOT_FAILED || snapshot.snapshot() != 0) continue;
    AbandonRound(entry, {snapshot.step(), 0},
                 WithReason(absl::FailedPreconditionError(absl::StrCat(
                                member, ", shard ", snapshot.shard(), ": ", snapshot.message())),
                            "SNAPSHOT_FAILED"));
  }
}

void Coordinator::LoseMember(const std::string& member, const std::string& why) {
  LOG(WARNING) << member << " lost: " << why;
  metrics_.ForgetMember(member);
  for (Entry* entry : ActiveJobs()) {
    entry->job.MemberLost(member, why, Now());
    Perform(*entry);
  }
}

void Coordinator::CloseAttachment(const std::string& member, absl::Status status) {
  auto it = attachments_.find(member);
  if (it == attachments_.end()) return;
  it->second->Close(std::move(status));
  to_wake_.push_back(it->second->waker());
  attachments_.erase(it);
}

void Coordinator::Detach(const Attachment& attachment, Departure departure) {
  Turn turn(this);
  const std::string& member = attachment.member();
  auto it = attachments_.find(member);
  if (it == attachments_.end() || it->second.get() != &attachment) return;
  attachments_.erase(it);
  if (departure == Departure::kOrderly) {
    leases_.Remove(member);
    LoseMember(member, "it left the fleet");
  } else {
    leases_.Disconnect(member);
    LOG(WARNING) << member << ": stream broken";
  }
}

v1::ListMembersResponse Coordinator::ListMembers() {
  Turn turn(this);
  v1::ListMembersResponse response;
  for (const auto& [name, known] : leases_.members()) {
    const v1::Hello& hello = known.hello;
    v1::Member& member = *response.add_members();
    member.set_name(name);
    member.set_role(hello.role());
    member.set_host(hello.host());
    member.set_pid(hello.pid());
    member.set_incarnation(hello.incarnation());
    *member.mutable_devices() = hello.devices();
    for (const std::string& job : known.jobs) member.add_jobs(job);
    *member.mutable_attach_time() = ToProto(known.attach_time);
    *member.mutable_report_time() = ToProto(known.report_time);
    member.set_metrics_url(hello.metrics_url());
    member.set_version(hello.version());
    member.set_transport(hello.transport());
  }
  response.set_term(term());
  response.set_coordinator_metrics_url(options_.metrics->url());
  return response;
}

// ---------------------------------------------------------------- time

void Coordinator::Tick() {
  Turn turn(this);
  for (const std::string& member : leases_.TakeExpired(Now())) {
    const std::string why = absl::StrCat("nothing was heard of it for its lease of ",
                                         absl::FormatDuration(options_.lease));
    CloseAttachment(member, WithReason(absl::DeadlineExceededError(absl::StrCat(member, ": ", why)),
                                       "LEASE_EXPIRED"));
    LoseMember(member, why);
  }
  for (Entry* entry : ActiveJobs()) {
    entry->job.Tick(entry->writing > 0, Now());
    DropUnwantedRounds(*entry);
    Perform(*entry);
  }
  ScheduleJobs();
  if (Now() - last_progress_ < kWatchInterval) return;
  last_progress_ = Now();
  for (Entry* entry : ActiveJobs()) WakeWatches(*entry);
  ExportMetrics();
}

// On-demand rounds that the job has given up (a shard missed the step): they hold files.
void Coordinator::DropUnwantedRounds(Entry& entry) {
  for (auto it = entry.rounds.begin(); it != entry.rounds.end();) {
    const bool wanted = it->first.second == 0 || entry.job.Wants(it->first.second);
    it = wanted ? std::next(it) : EndRound(entry, it, NotWanted(*it->second));
  }
}

// Whoever waits for the outcome hears it when the turn is over: a round's mutex may be held for as
// long as the disk takes.
Coordinator::Rounds::iterator Coordinator::EndRound(Entry& entry, Rounds::iterator round,
                                                    absl::Status outcome) {
  ended_rounds_.emplace_back(std::move(round->second), std::move(outcome));
  return entry.rounds.erase(round);
}

void Coordinator::ScheduleJobs() {
  std::vector<WaitingJob> waiting;
  for (const auto& [number, entry] : jobs_) {
    if (entry->job.state() != v1::QUEUED) continue;
    const v1::JobSpec& spec = entry->job.record().spec();
    const v1::WorkerCount& workers = spec.resources().workers();
    waiting.push_back(
        {.number = number,
         .priority = spec.priority(),
         .workers_min = workers.min(),
         .workers_max = static_cast<int>(std::max<int64_t>(
             workers.min(), std::min<int64_t>(workers.max(), spec.data().batch_size()))),
         .ps = spec.sync().mode() == v1::ALLREDUCE ? 0 : spec.resources().ps(),
         .settle_for_fewer = Now() - entry->queued_since >= kGatherTime});
  }
  if (waiting.empty()) return;
  FreeMembers free;
  for (const auto& [name, member] : leases_.members()) {
    if (!member.attached) continue;
    const int jobs = std::ranges::count_if(
        ActiveJobs(), [&name = name](Entry* entry) { return entry->job.Uses(name); });
    if (member.hello.role() == v1::PS) {
      free.ps.push_back({name, jobs});
    } else if (jobs == 0 && member.jobs.empty()) {
      free.workers.push_back(name);
    }
  }
  for (const Placement& placement : Schedule(waiting, std::move(free))) {
    StartJob(*jobs_.at(placement.number), placement.workers, placement.ps);
  }
}

void Coordinator::StartJob(Entry& entry, const std::vector<std::string>& workers,
                           const std::vector<std::string>& ps) {
  const v1::Job& record = entry.job.record();
  absl::StatusOr<v1::Graph> graph = entry.origin.graph;
  if (graph->nodes().empty()) graph = BuildModel(record.spec().model());
  const absl::Status logged = OpenMetricsLog(entry);
  if (!graph.ok() || !logged.ok()) {
    const absl::Status& why = graph.ok() ? logged : graph.status();
    entry.job.Fail(ReasonOf(why), std::string(why.message()), Now());
    return Perform(entry);
  }
  PlanRequest request{.job = record,
                      .graph = *std::move(graph),
                      .restore = entry.origin.restore,
                      .first_step = entry.origin.first_step};
  if (const auto own = ParseCheckpointRef(record.checkpoint()); own && own->step) {
    request.restore = record.checkpoint();
    request.first_step = *own->step;
  }
  for (const std::string& name : workers) request.workers.push_back(leases_.Find(name)->hello);
  for (const std::string& name : ps) request.ps.push_back(leases_.Find(name)->hello);
  const std::shared_ptr<const v1::JobPlan> plan = MakePlan(std::move(request));
  entry.committed.clear();
  entry.abandoned.clear();
  entry.job.Schedule(plan, Now());
  Perform(entry, {.plan = plan.get()});
}

void Coordinator::ExportMetrics() {
  absl::flat_hash_map<int, int> jobs, members;
  for (const auto& [number, entry] : jobs_) ++jobs[entry->job.state()];
  for (const auto& [name, member] : leases_.members()) {
    ++members[member.hello.role()];
    metrics_.SetHeartbeatAge(member.hello.role(), name,
                             absl::ToDoubleSeconds(Now() - member.report_time));
  }
  for (int state = v1::QUEUED; state <= v1::CANCELLED; ++state) {
    metrics_.SetJobs(static_cast<v1::JobState>(state), jobs[state]);
  }
  metrics_.SetMembers(v1::WORKER, members[v1::WORKER]);
  metrics_.SetMembers(v1::PS, members[v1::PS]);
  for (Entry* entry : ActiveJobs()) {
    const v1::Job& record = entry->job.record();
    metrics_.SetJobProgress(JobIdOf(record.name()), record.progress());
  }
}

// ---------------------------------------------------------------- checkpoints, for ps

absl::StatusOr<std::optional<ShardUpload>> Coordinator::BeginShard(
    const v1::WriteShardHeader& header) {
  std::shared_ptr<CheckpointRound> round;
  {
    Turn turn(this);
    ASSIGN_OR_RETURN(Entry* const entry, Find(header.job()));
    const Job& job = entry->job;
    if (HasCommitted(*entry, header.generation(), header.step())) return std::nullopt;
    RETURN_IF_ERROR(job.AdmitShard(header));
    const RoundKey key{header.step(), header.snapshot()};
    if (entry->abandoned.contains(key)) {
      return WithReason(absl::FailedPreconditionError(absl::StrCat(
                            "the checkpoint of step ", header.step(), " could not be written")),
                        "CHECKPOINT_ABANDONED");
    }
    std::shared_ptr<CheckpointRound>& known = entry->rounds[key];
    if (known == nullptr) {
      CheckpointRound::Options options{
          .plan = job.plan(),
          .writer = {.directory = CheckpointFolder(job.plan()->job()),
                     .id = absl::StrCat(term(), "-", header.snapshot()),
                     .step = header.step(),
                     .total_steps = job.record().progress().total_steps()},
          .snapshot = header.snapshot(),
          .start = Now()};
      if (header.has_update_state()) options.writer.update_state = header.update_state();
      known = std::make_shared<CheckpointRound>(std::move(options));
    }
    round = known;
    ++entry->writing;
  }
  ShardUpload upload(round, header.shard());
  if (absl::Status opened = round->Open(); !opened.ok()) return EndShard(upload, opened);
  return upload;
}

bool Coordinator::HasCommitted(const Entry& entry, uint32_t generation, int64_t step) const {
  return generation == entry.job.record().generation() && entry.committed.contains(step);
}

absl::Status Coordinator::EndShard(const ShardUpload& upload, absl::Status stream) {
  CheckpointRound& round = *upload.round();
  bool committing = false;
  if (stream.ok()) {
    const absl::StatusOr<bool> last = round.FinishShard(upload.shard(), upload.bytes());
    committing = last.ok() && *last;
    stream = committing ? CommitRound(round) : last.status();
  }
  Turn turn(this);
  const auto found = Find(round.plan().job());
  if (!found.ok()) return found.status();
  Entry& entry = **found;
  --entry.writing;
  // Another round of the same step may have been faster.
  if (committing && HasCommitted(entry, round.plan().generation(), round.step())) {
    return absl::OkStatus();
  }
  if (stream.ok() || (!committing && HarmsOnlyTheStream(stream))) return stream;
  auto it = entry.rounds.find({round.step(), round.snapshot()});
  if (it == entry.rounds.end() || it->second != upload.round()) return stream;
  AbandonRound(entry, it->first, stream);
  Perform(entry);
  return stream;
}

void Coordinator::AbandonRound(Entry& entry, RoundKey key, const absl::Status& why) {
  auto it = entry.rounds.find(key);
  if (it == entry.rounds.end()) return;
  EndRound(entry, it, why);
  entry.abandoned.insert(key);
  metrics_.checkpoint_failures.Increment();
  const auto [step, snapshot] = key;
  entry.job.CheckpointFailed(step, snapshot, why, Now());
}

absl::Status Coordinator::CommitRound(CheckpointRound& round) {
  const std::string& job = round.plan().job();
  {
    Turn turn(this);
    ASSIGN_OR_RETURN(Entry* const entry, Find(job));
    auto it = entry->rounds.find({round.step(), round.snapshot()});
    const bool current = it != entry->rounds.end() && it->second.get() == &round;
    if (!current) return NotWanted(round);
  }
  ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, round.Commit());
  {
    Turn turn(this);
    ASSIGN_OR_RETURN(Entry* const entry, Find(job));
    if (entry->job.active() && entry->job.record().generation() == round.plan().generation()) {
      // A periodic and an on-demand round of one step hold the same bytes: this commit answers
      // both.
      auto it = entry->rounds.lower_bound({round.step(), 0});
      while (it != entry->rounds.end() && it->first.first == round.step()) {
        it = EndRound(*entry, it, absl::OkStatus());
      }
      entry->committed.insert(round.step());
    }
    metrics_.checkpoint_seconds.Observe(absl::ToDoubleSeconds(Now() - round.start()));
    metrics_.checkpoint_bytes.Increment(static_cast<double>(checkpoint.size_bytes()));
    metrics_.CheckpointCommitted(job, round.step(),
                                 absl::ToDoubleSeconds(Now() - absl::UnixEpoch()));
    entry->job.CheckpointCommitted(checkpoint, Now());
    Perform(*entry, {.checkpoint = &checkpoint});
  }
  PruneAfter(round);
  return absl::OkStatus();
}

void Coordinator::PruneAfter(const CheckpointRound& round) {
  const std::string& job = round.plan().job();
  const auto removed =
      PruneCheckpoints(CheckpointFolder(job), round.plan().spec().checkpoint().keep_last());
  if (!removed.ok()) {
    LOG(ERROR) << JobName(job) << ": older checkpoints are left over: " << removed.status();
    return;
  }
  if (removed->empty()) return;
  Turn turn(this);
  if (const auto entry = Find(job); entry.ok()) {
    const absl::Status stored =
        store_->Commit({.record = &(*entry)->job.record(), .checkpoints_removed = *removed});
    if (!stored.ok()) LOG(FATAL) << JobName(job) << " cannot be stored: " << stored;
  }
}

absl::StatusOr<Coordinator::RestoreSource> Coordinator::FindRestore(
    const v1::ReadShardRequest& request) {
  Turn turn(this);
  ASSIGN_OR_RETURN(Entry* const entry, Find(request.job()));
  const Job& job = entry->job;
  if (!job.active() || job.record().generation() != request.generation()) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            job.record().name(), ": generation ", request.generation(), " is not the current one (",
            job.record().generation(), ", ", v1::JobState_Name(job.state()), ")")),
        "STALE_GENERATION");
  }
  const v1::JobPlan& plan = *job.plan();
  if (request.shard() < 0 || request.shard() >= plan.shards_size()) {
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat(job.record().name(), ": no shard ", request.shard(),
                                                " (", plan.shards_size(), " shards)")),
        "SHARD_NOT_FOUND");
  }
  if (plan.restore().empty()) {
    return WithReason(absl::FailedPreconditionError(
                          absl::StrCat(job.record().name(), " starts from initial values")),
                      "NOTHING_TO_RESTORE");
  }
  if (plan.restore().front() == '/') return RestoreSource{job.plan(), plan.restore()};
  const auto reference = ParseCheckpointRef(plan.restore());
  CHECK(reference.has_value()) << plan.restore();
  ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, FindCheckpoint(*reference));
  return RestoreSource{job.plan(), checkpoint.directory()};
}

}  // namespace muster
