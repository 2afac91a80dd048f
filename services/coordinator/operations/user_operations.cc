#include "services/coordinator/operations/user_operations.h"

#include <glog/logging.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/util/message_differencer.h"
#include "lib/admission/spec_check.h"
#include "lib/job/field_checks.h"
#include "lib/job/job_validation.h"
#include "lib/job/labels.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/log/log_scope.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "lib/status/utf8.h"
#include "services/coordinator/checkpoints/initial_values.h"
#include "services/coordinator/common/proto_time.h"
#include "services/coordinator/job/job_state.h"
#include "services/coordinator/job/job_update.h"
#include "services/coordinator/operations/job_filter.h"
#include "services/coordinator/scheduling/job_conditions.h"
#include "services/coordinator/store/state_folder.h"

namespace muster {
namespace {

using google::protobuf::util::MessageDifferencer;

// Serializes deterministically, so that equal specs have equal bytes whatever the order of their
// maps.
std::string Fingerprint(const v1::JobSpec& spec) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  spec.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

v1::Job QueuedRecord(v1::JobSpec spec, absl::Time now) {
  v1::Job record;
  *record.mutable_spec() = std::move(spec);
  record.set_state(v1::QUEUED);
  record.set_reason("SUBMITTED");
  record.set_message("waits for members");
  *record.mutable_create_time() = ToProto(now);
  UpdateConditions(now, record);
  return record;
}

// Number of waiting jobs that keep their built model in memory, up to a megabyte each.
constexpr int64_t kGraphsHeldMax = 128;

absl::StatusOr<int64_t> CountQueued(const JobRegistry::Transaction& transaction) {
  const auto queued = static_cast<int64_t>(transaction.queue().size());
  if (queued < limits::kJobsQueuedMax) return queued;
  return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                        queued, " jobs are queued already (the limit): cancel some or wait")),
                    "QUEUE_FULL");
}

// Limits the bytes of a page of jobs, because reports wait while it is copied. The last job may
// exceed it: a spec may have a megabyte.
constexpr int64_t kPageBytesMax = 1 << 20;

// Adds to the message of the oldest kept event how many events before it are not kept. Revisions
// count a job's events, so the caller knows the number from a gap.
void NoteDropped(uint64_t events, v1::JobEvent& oldest_kept) {
  oldest_kept.set_message(
      absl::StrCat("(", events, " earlier events are not kept) ", oldest_kept.message()));
}

absl::Status NotFinished(const v1::Job& record) {
  return WithReason(absl::FailedPreconditionError(
                        absl::StrCat(JobIdOf(record.name()), " has not ended (",
                                     v1::JobState_Name(record.state()), "): cancel it first")),
                    "JOB_NOT_FINISHED");
}

// Returns true if the values that the job starts from came with its model. A job that does not
// resume from a checkpoint has no other source of values.
bool BroughtItsValues(const JobRegistry::Entry& entry) {
  return entry.published->spec().checkpoint().resume_from().empty() &&
         !entry.origin.restore.empty();
}

}  // namespace

// ---------------------------------------------------------------- creating

void UserOperations::RemoveOldUploads() {
  absl::flat_hash_set<std::string> named;
  {
    JobRegistry::Transaction transaction(&registry());
    for (const auto& [number, entry] : transaction.jobs()) {
      named.insert(entry->published->spec().model().external().path());
    }
  }
  uploads_.RemoveOld(registry().Now(),
                     [&](const std::string& path) { return named.contains(path); });
}

void UserOperations::RemoveOrphans() {
  uploads_.RemoveUnfinished();
  RemoveOldUploads();
  std::vector<std::string> used;
  absl::flat_hash_set<std::string> known;
  {
    JobRegistry::Transaction transaction(&registry());
    for (const auto& [number, entry] : transaction.jobs()) {
      used.push_back(entry->origin.restore);
      known.insert(JobIdOf(entry->published->name()));
    }
  }
  const auto folders = registry().folder().JobFolders();
  if (!folders.ok()) {
    LOG(ERROR) << "cannot remove values of models that no job uses: " << folders.status();
    return;
  }
  for (const StateFolder::JobFolder& folder : *folders) {
    if (known.contains(folder.id)) continue;
    LOG(INFO) << "keeping values of models that no job uses: the store does not know "
              << registry().folder().job(folder.id) << ", whose job may start from them";
    return;
  }
  RemoveOrphanedValues(registry().folder().models(), used);
}

absl::StatusOr<std::optional<v1::Job>> UserOperations::FindRequest(
    const v1::CreateJobRequest& request) {
  if (request.request_id().empty() || request.validate_only()) return std::nullopt;
  ASSIGN_OR_RETURN(const auto earlier, registry().store().FindRequest(request.request_id()));
  if (!earlier) return std::nullopt;
  if (earlier->fingerprint != Fingerprint(request.spec())) {
    return WithReason(absl::AlreadyExistsError(
                          absl::StrCat("request_id '", request.request_id(), "' was used for ",
                                       earlier->job, " with another spec; use a new request_id")),
                      "REQUEST_ID_REUSED");
  }
  return GetJob(earlier->job);
}

absl::StatusOr<UserOperations::CheckedSpec> UserOperations::Check(
    const v1::CreateJobRequest& request, const CallerGone& caller_gone,
    std::unique_ptr<Checkpointer::Pin>& source) {
  const SpecCheckContext context{
      .paths = options_.paths,
      .uploads = registry().folder().uploads(),
      .data_visible = options_.data_visible,
      .data_bytes_max = limits::kDataCheckBytesMax,
      .enter_data_check = [&]() -> absl::StatusOr<std::shared_ptr<void>> {
        return data_checks_.Enter(caller_gone, options_.data_check_patience);
      },
      .find_checkpoint =
          [&](const CheckpointRef& reference) -> absl::StatusOr<SpecCheckContext::Found> {
        ASSIGN_OR_RETURN(auto pinned, options_.checkpoints->FindAndPin(reference));
        source = std::move(pinned.pin);
        return SpecCheckContext::Found{pinned.checkpoint.name(), pinned.checkpoint.directory()};
      },
      .caller_gone = caller_gone,
      .found_damaged = [&] { registry().metrics().checkpoints_damaged.Increment(); }};
  absl::StatusOr<SpecCheck> found = CheckSpec(request.spec(), context);
  if (const size_t bytes = request.request_id().size(); bytes > limits::kRequestIdBytesMax) {
    std::vector<FieldFault> faults = FaultsOf(found.status());
    if (!found.ok() && faults.empty()) return found.status();  // the caller is gone
    faults.push_back({"request_id", absl::StrCat("must be at most ", limits::kRequestIdBytesMax,
                                                 " bytes (is ", bytes, ")")});
    return FaultsToStatus(faults, found.ok() ? "INVALID_REQUEST" : "INVALID_SPEC");
  }
  RETURN_IF_ERROR(found.status());
  Model& model = found->model;
  CheckedSpec checked{
      .spec = request.spec(),
      .origin = {.restore = std::move(found->restore), .first_step = found->first_step},
      .graph = std::make_shared<const v1::Graph>(std::move(model.graph)),
      .warnings = std::move(found->warnings)};
  FillDefaults(checked.spec);
  if (!model.initial_values.empty()) {
    checked.origin.graph = *checked.graph;
    if (checked.origin.restore.empty()) checked.initial_values = std::move(model.initial_values);
  }
  return checked;
}

void UserOperations::TakeOverLeftOut(const JobOrigin& origin, v1::Job& record) {
  const auto reference = ParseCheckpointRef(origin.restore);
  if (!reference) return;
  JobRegistry::Transaction transaction(&registry());
  const auto source = transaction.Find(reference->job);
  if (!source.ok()) return;
  const v1::Job& before = *(*source)->published;
  const auto& batches = before.recovery().left_out_batches();
  if (batches.empty() || !MessageDifferencer::Equals(before.spec().data(), record.spec().data())) {
    return;
  }
  *record.mutable_recovery()->mutable_left_out_batches() = batches;
  record.add_warnings(
      absl::StrCat("checkpoint.resume_from: without batches ", absl::StrJoin(batches, ", "),
                   " of the data, which were left out of ", JobIdOf(before.name())));
}

absl::StatusOr<v1::Job> UserOperations::CreateJob(const v1::CreateJobRequest& request,
                                                  const CallerGone& caller_gone) {
  ASSIGN_OR_RETURN(auto earlier, FindRequest(request));
  if (earlier) return *std::move(earlier);
  ImportGate::Slot slot;  // held until the model is out of memory
  if (request.spec().model().has_onnx() || request.spec().model().has_external()) {
    ASSIGN_OR_RETURN(slot, imports_.Enter(caller_gone));
  }
  std::unique_ptr<Checkpointer::Pin> source;  // held until the registry has the job
  ASSIGN_OR_RETURN(CheckedSpec checked, Check(request, caller_gone, source));
  v1::Job record = QueuedRecord(std::move(checked.spec), registry().Now());
  record.mutable_progress()->set_step(checked.origin.first_step);
  for (const std::string& warning : checked.warnings) record.add_warnings(Printable(warning));
  TakeOverLeftOut(checked.origin, record);
  if (request.validate_only()) return record;
  const std::string models = registry().folder().models();
  std::string written;
  if (!checked.initial_values.empty()) {
    ASSIGN_OR_RETURN(written,
                     WriteInitialValues(models, record.spec(),
                                        {.graph = checked.origin.graph,
                                         .initial_values = std::move(checked.initial_values)}));
    checked.origin.restore = written;
  }
  absl::Cleanup forget = [&] {
    if (!written.empty()) RemoveInitialValues(models, written);
  };
  slot.reset();
  absl::MutexLock lock(&creating_);
  if (caller_gone()) return absl::CancelledError("the caller is gone");
  ASSIGN_OR_RETURN(earlier, FindRequest(request));
  if (earlier) return *std::move(earlier);
  ASSIGN_OR_RETURN(record, Enter(request, std::move(record), std::move(checked)));
  std::move(forget).Cancel();
  return record;
}

absl::StatusOr<v1::Job> UserOperations::Enter(const v1::CreateJobRequest& request, v1::Job record,
                                              CheckedSpec checked) {
  int64_t queued;
  {
    JobRegistry::Transaction transaction(&registry());
    ASSIGN_OR_RETURN(queued, CountQueued(transaction));
  }
  JobOrigin& origin = checked.origin;
  ASSIGN_OR_RETURN(record, registry().store().AddJob({.record = std::move(record),
                                                      .origin = origin,
                                                      .request_id = request.request_id(),
                                                      .fingerprint = Fingerprint(request.spec())}));
  // A model that the spec defines can be built again.
  if (origin.graph.parameters().empty() && queued >= kGraphsHeldMax) checked.graph.reset();
  origin.graph.Clear();
  {
    JobRegistry::Transaction transaction(&registry());
    transaction.Add(record, std::move(origin), std::move(checked.graph), /*plan=*/nullptr);
  }
  const LogScope scope({.job = JobIdOf(record.name())});
  LOG(INFO) << JobIdOf(record.name()) << " QUEUED SUBMITTED";
  options_.watches->Wake({record.number()});
  return record;
}

// ---------------------------------------------------------------- reading

absl::StatusOr<v1::Job> UserOperations::GetJob(const std::string& name) {
  JobRegistry::Transaction transaction(&registry());
  ASSIGN_OR_RETURN(const JobRegistry::Entry* const entry, transaction.Find(name));
  return transaction.View(*entry);
}

absl::StatusOr<v1::ListJobsResponse> UserOperations::ListJobs(const v1::ListJobsRequest& request) {
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
  ASSIGN_OR_RETURN(const JobFilter filter, JobFilter::Make(request.states(), request.selector()));
  const int page_size = request.page_size() == 0
                            ? limits::kPageSizeDefault
                            : std::min(request.page_size(), limits::kPageSizeMax);
  JobRegistry::Transaction transaction(&registry());
  v1::ListJobsResponse response;
  int64_t bytes = 0;
  const auto newest = std::make_reverse_iterator(transaction.jobs().lower_bound(before));
  for (auto it = newest; it != transaction.jobs().rend(); ++it) {
    const JobRegistry::Entry& entry = *it->second;
    if (!filter.Matches(*entry.published)) continue;
    if (response.jobs_size() == page_size || bytes >= kPageBytesMax) {
      response.set_next_page_token(absl::StrCat(response.jobs().rbegin()->number()));
      break;
    }
    v1::Job& job = *response.add_jobs();
    job = transaction.View(entry, request.view());
    bytes += static_cast<int64_t>(job.ByteSizeLong());
  }
  return response;
}

absl::StatusOr<std::shared_ptr<JobWatch>> UserOperations::WatchJob(
    const v1::WatchJobRequest& request, std::shared_ptr<StreamWaker> waker) {
  JobRegistry::Transaction transaction(&registry());
  ASSIGN_OR_RETURN(const JobRegistry::Entry* const entry, transaction.Find(request.name()));
  const v1::Job& record = *entry->published;
  return options_.watches->Add(record.number(), record.name(), request.revision(),
                               std::move(waker));
}

// The thread that stores changes wakes a watch, and all changes wait while the watch reads. So a
// watch that was up to date gets the new events from memory.
absl::StatusOr<std::vector<v1::JobEvent>> UserOperations::EventsAfter(
    const JobWatch& watch, const std::vector<v1::JobEvent>* news) const {
  if (news == nullptr || news->front().revision() > watch.revision + 1 ||
      news->size() >= limits::kWatchEventsMax) {
    return registry().store().Events(watch.number(), watch.revision, limits::kWatchEventsMax);
  }
  std::vector<v1::JobEvent> events;
  std::copy_if(news->begin(), news->end(), std::back_inserter(events),
               [&](const v1::JobEvent& event) { return event.revision() > watch.revision; });
  return events;
}

absl::StatusOr<std::optional<WatchUpdate<v1::WatchJobResponse>>> UserOperations::NextOf(
    JobWatch& watch) {
  const bool woken = options_.watches->TakeDue(watch);
  const bool due = std::exchange(watch.has_more, false) || woken;
  WatchUpdate<v1::WatchJobResponse> answer;
  v1::Job& record = *answer.response.mutable_job();
  std::shared_ptr<const std::vector<v1::JobEvent>> news;
  {
    JobRegistry::Transaction transaction(&registry());
    const JobRegistry::Entry* const entry = transaction.FindNumber(watch.number());
    if (entry == nullptr) {
      return WithReason(absl::NotFoundError(absl::StrCat(JobIdOf(watch.name()), " was deleted")),
                        "JOB_NOT_FOUND");
    }
    if (!due) return std::nullopt;
    record = transaction.View(*entry);
    news = entry->news;
  }
  answer.last = IsTerminal(record.state());
  if (record.revision() <= watch.revision) return answer;  // only the progress has changed
  ASSIGN_OR_RETURN(auto events, EventsAfter(watch, news.get()));
  const uint64_t first = events.empty() ? 0 : events.front().revision();
  if (first > watch.revision + 1) NoteDropped(first - watch.revision - 1, events.front());
  const bool full = events.size() == limits::kWatchEventsMax;
  for (v1::JobEvent& event : events) {
    if (event.revision() > record.revision()) break;  // stored, but not public yet
    watch.revision = event.revision();
    *answer.response.add_events() = std::move(event);
  }
  watch.has_more = full && watch.revision < record.revision();
  if (watch.has_more) answer.last = false;
  return answer;
}

// ---------------------------------------------------------------- changing

absl::StatusOr<v1::Job> UserOperations::Change(const std::string& name,
                                               const std::function<absl::Status(Job&)>& change) {
  v1::Job changed;
  CommitQueue::Ticket stored;
  {
    JobRegistry::Transaction transaction(&registry());
    ASSIGN_OR_RETURN(JobRegistry::Entry* const entry, transaction.Find(name));
    RETURN_IF_ERROR(change(entry->job));
    stored = transaction.Commit(*entry);
    changed = entry->job.record();
  }
  RETURN_IF_ERROR(registry().changes().Await(stored, limits::kChangeWaitMax));
  return changed;
}

absl::StatusOr<v1::Job> UserOperations::CancelJob(const std::string& name) {
  return Change(name, [this](Job& job) { return job.Cancel(registry().Now()); });
}

absl::StatusOr<v1::Job> UserOperations::SuspendJob(const std::string& name) {
  return Change(name, [this](Job& job) { return job.Suspend(registry().Now()); });
}

absl::StatusOr<v1::Job> UserOperations::ResumeJob(const v1::ResumeJobRequest& request) {
  std::optional<v1::ResourceSpec> resources;
  if (request.has_resources()) {
    ASSIGN_OR_RETURN(v1::Job job, GetJob(request.name()));
    v1::JobSpec& spec = *job.mutable_spec();
    const int was = spec.resources().workers().logical();
    const int degree = std::max(1, spec.resources().tensor_parallel());  // 0: stored by 0.2.0
    *spec.mutable_resources() = request.resources();
    // Checked first, because `max` may be valid only with the former number.
    if (const int is = spec.resources().workers().logical(); is != was) {
      return FaultsToStatus({{"resources.workers.logical",
                              absl::StrCat("cannot change (was ", was, ", is ", is,
                                           "): submit a job with checkpoint.resume_from")}});
    }
    // Unset: a client that does not know the field changes something else.
    const int next = spec.resources().tensor_parallel();
    if (next != 0 && next != degree) {
      return FaultsToStatus({{"resources.tensor_parallel",
                              absl::StrCat("cannot change (was ", degree, ", is ", next,
                                           "): submit a job with checkpoint.resume_from")}});
    }
    spec.mutable_resources()->set_tensor_parallel(degree);
    if (auto faults = ValidateJobSpec(spec); !faults.empty()) return FaultsToStatus(faults);
    FillDefaults(spec);
    resources = spec.resources();
  }
  return Change(request.name(), [&](Job& job) {
    return job.Resume(resources ? &*resources : nullptr, registry().Now());
  });
}

absl::StatusOr<v1::Job> UserOperations::UpdateJob(const v1::UpdateJobRequest& request) {
  std::vector<FieldFault> faults;
  if (request.update_mask().paths().empty()) {
    faults.push_back({"update_mask",
                      absl::StrCat("required: one or more of ", absl::StrJoin(kUpdatable, ", "))});
  }
  std::set<std::string> paths;
  for (const std::string& path : request.update_mask().paths()) {
    if (std::ranges::count(kUpdatable, path) > 0) {
      paths.insert(path);
      continue;
    }
    if (faults.size() >= kUpdatable.size()) break;  // one fault per changeable field is enough
    const std::string shown = absl::CEscape(path.substr(0, limits::kNameBytesMax));
    faults.push_back({"update_mask", absl::StrCat("'", shown, "' cannot be changed; what can is ",
                                                  absl::StrJoin(kUpdatable, ", "))});
  }
  if (!faults.empty()) return FaultsToStatus(faults, "INVALID_REQUEST");
  // Large fields are checked before the transaction, which blocks other callers.
  FieldChecks checks;
  if (paths.contains("labels")) CheckLabels("labels", request.spec().labels(), checks);
  if (paths.contains("annotations")) {
    CheckAnnotations("annotations", request.spec().annotations(), checks);
  }
  if (auto broken = std::move(checks).Take(); !broken.empty()) return FaultsToStatus(broken);
  return Change(request.name(), [&](Job& job) -> absl::Status {
    const v1::Job& record = job.record();
    if (request.revision() != 0 && request.revision() != record.revision()) {
      return WithReason(
          absl::AbortedError(absl::StrCat(
              JobIdOf(record.name()), " has changed since: its revision is ", record.revision(),
              " and not ", request.revision(), "; get the job again, then repeat the update")),
          "JOB_CHANGED");
    }
    v1::JobSpec spec = record.spec();
    for (const std::string& path : paths) TakeOver(path, request.spec(), spec);
    FillDefaults(spec);
    if (auto broken = ValidateJobSpec(spec); !broken.empty()) return FaultsToStatus(broken);
    job.Update(spec, registry().Now());
    return absl::OkStatus();
  });
}

absl::Status UserOperations::DeleteJob(const std::string& name) {
  std::unique_ptr<JobRegistry::Entry> doomed;
  for (CommitQueue::Ticket settled = 0;;) {
    {
      JobRegistry::Transaction transaction(&registry());
      ASSIGN_OR_RETURN(JobRegistry::Entry* const entry, transaction.Find(name));
      if (!IsTerminal(entry->published->state())) return NotFinished(*entry->published);
      RETURN_IF_ERROR(options_.checkpoints->CheckUnneeded(transaction, *entry));
      if (entry->last_change == settled) {
        doomed = transaction.Take(*entry);
        break;
      }
      settled = entry->last_change;
    }
    // Earlier changes must be stored first. The record of a deleted job can neither be stored nor
    // published, and the job may have to be put back.
    RETURN_IF_ERROR(registry().changes().Await(settled, limits::kChangeWaitMax));
  }
  const v1::Job& record = *doomed->published;
  const absl::Status deleted = Erase(*doomed);
  if (!deleted.ok()) {
    JobRegistry::Transaction transaction(&registry());
    transaction.PutBack(std::move(doomed));
    return deleted;
  }
  const LogScope scope({.job = JobIdOf(record.name()), .generation = record.generation()});
  LOG(INFO) << JobIdOf(record.name()) << " deleted";
  options_.watches->Wake({record.number()});
  if (BroughtItsValues(*doomed)) {
    RemoveInitialValues(registry().folder().models(), doomed->origin.restore);
  }
  registry().folder().RemoveJobSetAside(JobIdOf(record.name()));
  return absl::OkStatus();
}

absl::Status UserOperations::Erase(const JobRegistry::Entry& entry) {
  registry().DiscardMetrics(entry.published->number());
  RETURN_IF_ERROR(registry().folder().SetJobAside(JobIdOf(entry.published->name())));
  const absl::Status deleted = registry().store().DeleteJob(entry.published->number());
  if (absl::IsResourceExhausted(deleted)) {
    // Removing the folder first may free the space that the store needs.
    registry().folder().RemoveJobSetAside(JobIdOf(entry.published->name()));
    return registry().store().DeleteJob(entry.published->number());
  }
  if (!deleted.ok()) registry().folder().BringJobBack(JobIdOf(entry.published->name()));
  return deleted;
}

}  // namespace muster
