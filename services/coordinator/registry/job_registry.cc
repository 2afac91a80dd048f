#include "services/coordinator/registry/job_registry.h"

#include <glog/logging.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/field_mask.pb.h"
#include "google/protobuf/util/field_mask_util.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/checkpoint_writer.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/log/log_scope.h"
#include "lib/status/status.h"
#include "services/coordinator/common/proto_time.h"
#include "services/coordinator/job/job_state.h"
#include "services/coordinator/job/last_checkpoint.h"
#include "services/coordinator/scheduling/job_conditions.h"
#include "services/coordinator/store/jobs_folder.h"

namespace muster {
namespace {

constexpr size_t kNamesakesMax = 5;  // limit for the list in an error message

// Returns the fields of JOB_VIEW_BASIC: all fields of a job, but only a few of its spec.
const google::protobuf::FieldMask& BasicFields() {
  static const auto* const kFields = [] {
    auto* fields = new google::protobuf::FieldMask;
    const google::protobuf::Descriptor& job = *v1::Job::descriptor();
    for (int i = 0; i < job.field_count(); ++i) {
      if (job.field(i)->number() != v1::Job::kSpecFieldNumber) {
        fields->add_paths(job.field(i)->name());
      }
    }
    for (const char* path : {"spec.name", "spec.resources", "spec.priority", "spec.labels"}) {
      fields->add_paths(path);
    }
    return fields;
  }();
  return *kFields;
}

v1::Job BasicView(const v1::Job& record) {
  v1::Job view;
  google::protobuf::util::FieldMaskUtil::MergeMessageTo(record, BasicFields(), {}, &view);
  return view;
}

// Returns true if the disk or the permissions are at fault, and not the content of a file.
bool IsOfTheDisk(const absl::Status& fault) {
  switch (fault.code()) {
    case absl::StatusCode::kUnknown:            // EIO: absl has no code for it
    case absl::StatusCode::kPermissionDenied:   // a backup that was restored as another user
    case absl::StatusCode::kResourceExhausted:  // a full disk, or no free descriptors
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kInternal:  // an error of the store
      return true;
    default:
      return false;
  }
}

absl::StatusOr<JobRegistry::CheckpointsFound> FindCheckpoints(const v1::Job& record,
                                                              const StateFolder& folder,
                                                              Store& store,
                                                              CoordinatorMetrics& metrics) {
  const std::string id = JobIdOf(record.name());
  const LogScope scope({.job = id, .generation = record.generation()});
  if (absl::Status finished = FinishReplacements(folder.checkpoints(id)); !finished.ok()) {
    LOG(ERROR) << JobIdOf(record.name()) << ": " << finished;
  }
  JobRegistry::CheckpointsFound found;
  ASSIGN_OR_RETURN(found.on_disk, ListCheckpointSteps(folder.checkpoints(id)));
  ASSIGN_OR_RETURN(const std::vector<v1::Checkpoint> stored, store.Checkpoints(record.number()));
  std::vector<int64_t> gone;
  std::set<int64_t> known;
  for (const v1::Checkpoint& checkpoint : stored) {
    known.insert(checkpoint.step());
    if (!std::ranges::binary_search(found.on_disk, checkpoint.step())) {
      gone.push_back(checkpoint.step());
    } else if (checkpoint.step() <= CommittedStep(record)) {
      found.last_known = checkpoint;
    } else {
      // The checkpoint was skipped and does not belong to the job's present training run.
      std::erase(found.on_disk, checkpoint.step());
    }
  }
  if (!gone.empty()) {
    LOG(WARNING) << JobIdOf(record.name()) << ": the checkpoints of steps "
                 << absl::StrJoin(gone, ", ") << " are not in " << folder.checkpoints(id)
                 << " any more; their records are removed";
    RETURN_IF_ERROR(store.Commit({.record = &record, .checkpoints_removed = gone}));
  }
  std::erase_if(found.on_disk, [&](int64_t step) {
    if (known.contains(step)) return false;
    const auto reader = CheckpointReader::Open(CheckpointPath(folder.checkpoints(id), step));
    if (reader.ok()) {
      found.unknown.push_back((*reader)->ToProto(id));
      return false;
    }
    if (absl::IsDataLoss(reader.status())) metrics.checkpoints_damaged.Increment();
    LOG(ERROR) << JobIdOf(record.name()) << ": checkpoint of step " << step
               << " cannot be read and is kept: " << reader.status();
    return true;
  });
  return found;
}

}  // namespace

std::optional<std::string> JobRegistry::Entry::ActiveId() const {
  if (!job.active()) return std::nullopt;
  return JobIdOf(job.record().name());
}

// ---------------------------------------------------------------- loading

JobRegistry::JobRegistry(Options options)
    : options_(std::move(options)),
      changes_([this](const Store::Change& change) { return store().Commit(change); }),
      metrics_({.durable = [this](uint64_t job, const RecordsBefore& durable) {
        RecordsDurable(job, durable);
      }}) {}

absl::Status JobRegistry::Load(const std::function<void()>& loaded_one) {
  ASSIGN_OR_RETURN(std::vector<StoredJob> stored, store().LoadJobs());
  std::vector<std::string> with_checkpoints;
  for (const StoredJob& job : stored) {
    if (!job.record.checkpoint().empty()) with_checkpoints.push_back(JobIdOf(job.record.name()));
  }
  RETURN_IF_ERROR(CheckJobsFolder(folder(), with_checkpoints));
  RETURN_IF_ERROR(PassOverJobFolders());
  CommitQueue::Ticket last = 0;
  for (StoredJob& job : stored) {
    absl::StatusOr<Findings> found = Look(job);
    if (found.ok()) {
      last = std::max(last, Enter(std::move(job), *std::move(found)));
    } else if (IsOfTheDisk(found.status())) {
      return Annotate(found.status(), absl::StrCat(JobIdOf(job.record.name()), " cannot be read"));
    } else {
      RETURN_IF_ERROR(EnterDamaged(std::move(job), found.status()));
    }
    if (loaded_one) loaded_one();
  }
  if (const absl::Status late = changes_.Await(last, limits::kChangeWaitMax); !late.ok()) {
    LOG(ERROR) << "cannot store the checkpoints that were found: " << late;
  }
  folder().RemoveAllSetAside();
  absl::MutexLock lock(&mu_);
  LOG(INFO) << "term " << store().term() << ": " << jobs_.size() << " jobs, " << active_.size()
            << " of them active";
  return absl::OkStatus();
}

absl::Status JobRegistry::PassOverJobFolders() {
  ASSIGN_OR_RETURN(const std::vector<StateFolder::JobFolder> folders, folder().JobFolders());
  const auto last = std::ranges::max_element(folders, {}, &StateFolder::JobFolder::number);
  if (last == folders.end()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool passed, store().PassOverNumbers(last->number));
  LOG_IF(WARNING, passed)
      << folder().job(last->id) << " belongs to a job that is newer than all jobs of this store: "
      << "the store is new, an older copy was restored, or a folder was copied there. New jobs "
         "have numbers from "
      << last->number + 1 << " on, so that no job takes another's checkpoints for its own. Folders "
      << "of jobs that the store does not know are kept; jobs can resume from their checkpoints "
      << "by path";
  return absl::OkStatus();
}

absl::StatusOr<JobRegistry::Findings> JobRegistry::Look(const StoredJob& job) {
  RETURN_IF_ERROR(job.damage);
  const v1::Job& record = job.record;
  if (IsActive(record.state()) && job.plan == nullptr) {
    return absl::DataLossError("its plan is not in the store");
  }
  const std::string id = JobIdOf(record.name());
  Findings found;
  if (!IsTerminal(record.state()) && record.generation() > 0) {
    RETURN_IF_ERROR(folder().MakeJob(id));
    const bool often =
        record.spec().training().evaluate_every_steps() > 0 || record.spec().model().has_external();
    ASSIGN_OR_RETURN(
        found.metrics_log,
        MetricsLog::Open(folder().metrics_log(id), often ? MetricsLog::Evaluations::kAnywhere
                                                         : MetricsLog::Evaluations::kAtTheEnd));
  }
  ASSIGN_OR_RETURN(found.checkpoints, FindCheckpoints(record, folder(), store(), metrics()));
  return found;
}

// One damaged job must not keep the others from running. It becomes FAILED with the reason, and its
// files on disk are not touched. A record that cannot be read stays in the store as it is.
absl::Status JobRegistry::EnterDamaged(StoredJob stored, const absl::Status& damage) {
  v1::Job& record = stored.record;
  const bool readable = !record.name().empty();
  if (!readable) record.set_name(JobName(absl::StrCat("damaged-", record.number())));
  const LogScope scope({.job = JobIdOf(record.name()), .generation = record.generation()});
  LOG(ERROR) << JobIdOf(record.name()) << " is damaged: " << damage;
  if (!IsTerminal(record.state())) {
    record.set_state(v1::FAILED);
    record.set_reason(kJobDamaged);
    record.set_message(absl::StrCat(
        "its data in the coordinator's store or state folder are damaged: ", damage.message()));
    record.set_revision(record.revision() + 1);
    record.set_suspend_requested(false);
    const absl::Time now = Now();
    *record.mutable_end_time() = ToProto(now);
    UpdateConditions(now, record);
    v1::JobEvent event;
    event.set_revision(record.revision());
    *event.mutable_time() = record.end_time();
    event.set_state(record.state());
    event.set_reason(record.reason());
    event.set_message(record.message());
    if (readable) {
      RETURN_IF_ERROR(
          store().Commit({.record = &record, .events = absl::MakeConstSpan(&event, 1)}));
    }
  }
  Transaction transaction(this);
  transaction.Add(record, std::move(stored.origin), /*graph=*/nullptr, /*plan=*/nullptr);
  return absl::OkStatus();
}

CommitQueue::Ticket JobRegistry::Enter(StoredJob stored, Findings found) {
  auto graph = stored.origin.graph.parameters().empty()
                   ? nullptr
                   : std::make_shared<const v1::Graph>(std::move(stored.origin.graph));
  stored.origin.graph.Clear();

  Transaction transaction(this);
  Entry& entry = transaction.Add(stored.record, std::move(stored.origin), std::move(graph),
                                 std::move(stored.plan));
  if (found.metrics_log != nullptr) {
    entry.job.Restore(found.metrics_log->history());
  }
  const CheckpointsFound& checkpoints = found.checkpoints;
  if (entry.job.active()) {
    for (const int64_t step : checkpoints.on_disk) {
      if (step > entry.job.plan()->first_step()) entry.rounds.Commit(step);
    }
  }
  if (!IsTerminal(stored.record.state())) {
    const v1::Checkpoint* newest = checkpoints.last_known ? &*checkpoints.last_known : nullptr;
    for (const v1::Checkpoint& unknown : checkpoints.unknown) {
      if (newest == nullptr || unknown.step() > newest->step()) newest = &unknown;
    }
    if (newest != nullptr) {
      options_.metrics->ShowCheckpoint(
          JobIdOf(stored.record.name()), newest->step(),
          absl::ToDoubleSeconds(FromProto(newest->create_time()) - absl::UnixEpoch()));
    }
  }
  for (const v1::Checkpoint& checkpoint : checkpoints.unknown) {
    entry.job.CheckpointCommitted(checkpoint, Now());
    transaction.Commit(entry, {.checkpoint = checkpoint});
  }
  return entry.last_change;
}

// ---------------------------------------------------------------- publishing

void JobRegistry::Publish(News news, const CommitQueue::Change& change) {
  if (change.record != nullptr) {
    std::shared_ptr<const v1::Job> before;
    std::shared_ptr<const std::vector<v1::JobEvent>> events;
    if (!change.events.empty()) {
      events = std::make_shared<const std::vector<v1::JobEvent>>(change.events);
    }
    {
      absl::MutexLock lock(&mu_);
      if (auto it = jobs_.find(news.number); it != jobs_.end()) {
        before = std::exchange(it->second->published, change.record);
        if (events != nullptr) std::swap(it->second->news, events);
      }
    }
    if (before != nullptr) CountTransitions(*before, change);
  }
  // The record is published first: members, waiting calls and watches that hear of the change below
  // must find it.
  for (Job::Outgoing& outgoing : news.effects.directives) {
    options_.fleet->Send(outgoing.member,
                         {std::move(outgoing.directive), std::move(outgoing.plan)});
  }
  for (CheckpointRounds::Ended& ended : news.ended_rounds) {
    ended.round->Resolve(std::move(ended.outcome));
  }
  if (!change.events.empty()) options_.watches->Wake({news.number});
}

void JobRegistry::RecordsDurable(uint64_t number, const RecordsBefore& durable) {
  Transaction transaction(this);
  Entry* const entry = transaction.FindNumber(number);
  if (entry == nullptr) return;
  entry->job.RecordsDurable(durable, Now());
  transaction.Commit(*entry);
}

void JobRegistry::Settle() {
  metrics_.Settle();
  changes_.AwaitAll();
}

void JobRegistry::CountTransitions(const v1::Job& before, const CommitQueue::Change& change) {
  const LogScope scope({.job = JobIdOf(before.name()), .generation = change.record->generation()});
  v1::JobState state = before.state();
  for (const v1::JobEvent& event : change.events) {
    LOG(INFO) << JobIdOf(before.name()) << " " << v1::JobState_Name(event.state()) << " "
              << event.reason() << ": " << event.message();
    if (event.state() != state) {
      options_.metrics->CountTransition(state, event.state(), event.reason());
    }
    state = event.state();
  }
  if (IsTerminal(state)) {
    options_.metrics->ForgetJob(JobIdOf(before.name()));
  } else if (!IsActive(state)) {
    options_.metrics->RestJob(JobIdOf(before.name()));
  }
}

// The timeline measures how long the job waits for the coordinator or for members. The time in
// which it is suspended does not count, because it waits for its user then.
JobRegistry::Turned JobRegistry::LookAt(Entry& entry) {
  const v1::Job& record = entry.job.record();
  const absl::Time now = Now();
  const bool has_stopped = entry.job.ResumesAt(now).has_value();
  const bool is_placeable = has_stopped || record.state() == v1::QUEUED;
  Turned turned{.placeable = is_placeable && !entry.is_placeable};
  entry.is_placeable = is_placeable;
  entry.timeline.Look(
      {.state = record.state(), .stopped = has_stopped, .step = record.progress().step()}, now,
      [&](JobTimeline::Span span, absl::Duration took) {
        options_.metrics->SpanEnded(span, took);
        turned.recovered |= span == JobTimeline::Span::kRecovery;
      });
  return turned;
}

void JobRegistry::UpdateQueue(Entry& entry) {
  const v1::Job& record = entry.job.record();
  std::optional<QueueKey> key;
  if (record.state() == v1::QUEUED) key = {-int64_t{record.spec().priority()}, record.number()};
  if (key == entry.in_queue) return;
  if (entry.in_queue) {
    queue_.erase(*entry.in_queue);
  } else {
    entry.queued_since = Now();
  }
  if (key) queue_[*key] = &entry;
  entry.in_queue = key;
}

// ---------------------------------------------------------------- transactions

JobRegistry::Transaction::Transaction(JobRegistry* registry) : registry_(registry) {
  registry_->mu_.Lock();
}

JobRegistry::Transaction::~Transaction() {
  registry_->mu_.Unlock();
  for (const auto& waker : to_wake_) waker->Wake();
  if (!recovered_.empty()) registry_->options_.watches->Wake(recovered_);
  if (dispatches_) registry_->options_.dispatch_soon();
  for (Job::Outgoing& outgoing : to_send_) {
    registry_->options_.fleet->Send(outgoing.member,
                                    {std::move(outgoing.directive), std::move(outgoing.plan)});
  }
}

std::string JobRegistry::Transaction::JobsNamed(const std::string& name) const {
  registry_->mu_.AssertHeld();
  std::vector<std::string> ids;
  int64_t more = 0;
  for (auto it = registry_->jobs_.rbegin(); it != registry_->jobs_.rend(); ++it) {
    const v1::Job& record = it->second->job.record();
    if (record.spec().name() != name) continue;
    if (ids.size() == kNamesakesMax) {
      ++more;
    } else {
      ids.push_back(JobIdOf(record.name()));
    }
  }
  if (ids.empty()) return "";
  return absl::StrCat("; jobs of this name: ", absl::StrJoin(ids, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " older") : "");
}

absl::StatusOr<JobRegistry::Entry*> JobRegistry::Transaction::Find(const std::string& name) const {
  registry_->mu_.AssertHeld();
  auto number = registry_->number_by_id_.find(JobIdOf(name));
  if (number == registry_->number_by_id_.end()) {
    const std::string id = JobIdOf(name);
    return WithReason(absl::NotFoundError(absl::StrCat("no job '", id, "'", JobsNamed(id))),
                      "JOB_NOT_FOUND");
  }
  return registry_->jobs_.at(number->second).get();
}

JobRegistry::Entry* JobRegistry::Transaction::FindNumber(uint64_t number) const {
  registry_->mu_.AssertHeld();
  auto it = registry_->jobs_.find(number);
  return it == registry_->jobs_.end() ? nullptr : it->second.get();
}

const absl::btree_map<uint64_t, std::unique_ptr<JobRegistry::Entry>>&
JobRegistry::Transaction::jobs() const {
  registry_->mu_.AssertHeld();
  return registry_->jobs_;
}

const JobRegistry::Queue& JobRegistry::Transaction::queue() const {
  registry_->mu_.AssertHeld();
  return registry_->queue_;
}

std::vector<JobRegistry::Entry*> JobRegistry::Transaction::Active() const {
  registry_->mu_.AssertHeld();
  std::vector<Entry*> jobs;
  for (const uint64_t number : registry_->active_)
    jobs.push_back(registry_->jobs_.at(number).get());
  return jobs;
}

JobRegistry::Entry& JobRegistry::Transaction::Add(const v1::Job& record, JobOrigin origin,
                                                  std::shared_ptr<const v1::Graph> graph,
                                                  std::shared_ptr<const v1::JobPlan> plan) {
  const absl::Time now = registry_->Now();
  auto entry = std::make_unique<Entry>(
      Entry{.job = Job(record, std::move(plan), registry_->store().term(), now),
            .published = std::make_shared<v1::Job>(record),
            .origin = std::move(origin),
            .graph = std::move(graph)});
  Entry& added = *entry;
  dispatches_ |= registry_->LookAt(added).placeable;
  PutBack(std::move(entry));
  return added;
}

v1::Job JobRegistry::Transaction::View(const Entry& entry, v1::JobView wanted) const {
  registry_->mu_.AssertHeld();
  v1::Job view = wanted == v1::JOB_VIEW_BASIC ? BasicView(*entry.published) : *entry.published;
  *view.mutable_progress() = entry.job.record().progress();
  const absl::Status unrecorded = registry_->metrics_.Trouble(view.number());
  const absl::Status unstored = registry_->changes_.trouble();
  const absl::Status& trouble = unstored.ok() ? unrecorded : unstored;
  if (auto own = entry.job.trouble()) *view.mutable_trouble() = *std::move(own);
  if (!trouble.ok() && !IsTerminal(view.state())) {
    view.mutable_trouble()->set_reason("STATE_UNWRITABLE");
    view.mutable_trouble()->set_message(absl::StrCat(
        "the coordinator cannot write to its state folder (", trouble.message(),
        "): training pauses once ", limits::kStepRecordsHeldMax,
        " steps wait to be recorded, and continues when there is space; nothing is lost"));
  }
  AddWhatFollows(entry.job.phase(), entry.wait, view, entry.job.StoppingMembers());
  return view;
}

std::unique_ptr<JobRegistry::Entry> JobRegistry::Transaction::Take(Entry& entry) {
  registry_->mu_.AssertHeld();
  const uint64_t number = entry.published->number();
  registry_->number_by_id_.erase(JobIdOf(entry.published->name()));
  registry_->active_.erase(number);
  if (const auto place = std::exchange(entry.in_queue, std::nullopt)) {
    registry_->queue_.erase(*place);
  }
  auto it = registry_->jobs_.find(number);
  std::unique_ptr<Entry> taken = std::move(it->second);
  registry_->jobs_.erase(it);
  return taken;
}

void JobRegistry::Transaction::PutBack(std::unique_ptr<Entry> entry) {
  registry_->mu_.AssertHeld();
  const uint64_t number = entry->published->number();
  registry_->number_by_id_[JobIdOf(entry->published->name())] = number;
  if (entry->job.active()) registry_->active_.insert(number);
  registry_->UpdateQueue(*entry);
  registry_->jobs_[number] = std::move(entry);
}

CommitQueue::Ticket JobRegistry::Transaction::Commit(Entry& entry, Extra extra) {
  registry_->mu_.AssertHeld();
  const v1::Job& record = entry.job.record();
  const Turned turned = registry_->LookAt(entry);
  if (turned.recovered) recovered_.push_back(record.number());
  dispatches_ |= turned.placeable;
  News news{.number = record.number(), .effects = entry.job.TakeEffects()};
  for (const absl::Status& why : std::exchange(news.effects.checkpoints_failed, {})) {
    registry_->metrics().CountCheckpointFailure(entry.ActiveId(), why);
  }
  for (const Job::Effects::Recovery& recovery : std::exchange(news.effects.recoveries, {})) {
    if (const auto id = entry.ActiveId()) {
      registry_->metrics().CountRecovery(*id, recovery.reason, recovery.lost);
    }
  }
  CommitQueue::Change change{.events = std::exchange(news.effects.events, {}),
                             .plan = std::move(extra.plan),
                             .checkpoint = std::move(extra.checkpoint),
                             .checkpoints_removed = std::move(extra.checkpoints_removed)};
  if (const auto records = std::exchange(news.effects.records, std::nullopt)) {
    registry_->metrics_.Append(record.number(),
                               registry_->folder().metrics_log(JobIdOf(record.name())),
                               std::exchange(news.effects.steps, {}),
                               std::exchange(news.effects.evaluations, {}), *records);
  }
  if (!change.events.empty()) {
    registry_->UpdateQueue(entry);
    if (entry.job.active()) {
      registry_->active_.insert(record.number());
    } else {
      registry_->active_.erase(record.number());
      entry.rounds.Clear();
      if (IsTerminal(entry.job.state())) entry.graph.reset();
      registry_->metrics_.Close(record.number());
    }
  }
  // The shards of a halted job write no periodic or final checkpoint.
  const bool halted = entry.job.state() == v1::RECOVERING;
  entry.rounds.DropUnwanted(
      [&](uint64_t snapshot) { return snapshot == 0 ? !halted : entry.job.Wants(snapshot); });
  news.ended_rounds = entry.rounds.TakeEnded();
  if (!change.events.empty() || !change.checkpoints_removed.empty()) {
    change.record = std::make_shared<v1::Job>(record);
  }
  const bool silent =
      change.record == nullptr && news.effects.directives.empty() && news.ended_rounds.empty();
  if (silent) return entry.last_change;
  change.publish = [registry = registry_,
                    news = std::move(news)](const CommitQueue::Change& stored) mutable {
    registry->Publish(std::move(news), stored);
  };
  return entry.last_change = registry_->changes_.Push(std::move(change));
}

void JobRegistry::Transaction::Seat(Store::Seat seat) {
  registry_->changes_.Push({.seat = std::move(seat)});
}

void JobRegistry::Transaction::AwaitFor(const absl::Condition& condition, absl::Duration timeout) {
  registry_->mu_.AssertHeld();
  muster::AwaitFor(&registry_->mu_, condition, timeout);
}

}  // namespace muster
