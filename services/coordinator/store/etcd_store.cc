#include "services/coordinator/store/etcd_store.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "proto/muster/v1/store.pb.h"
#include "services/coordinator/store/store_records.h"

namespace muster {
namespace {

using Values = EtcdValues::Values;
using Writing = EtcdValues::Writing;

constexpr int kEventsPage = 256;  // events are rarely long

constexpr char kEtcdSchema[] = "meta/schema";
constexpr char kCluster[] = "meta/cluster";
constexpr char kJobs[] = "meta/jobs";
constexpr char kFolder[] = "meta/folder";
constexpr char kRestoring[] = "meta/restoring";

constexpr int kRemovedAtOnceMax = 1000;  // checkpoints; each may need two operations
constexpr int kImportedAtOnceMax = 100;  // checkpoints
// Total size of the checkpoints in one transaction; other data of the job is added to it.
constexpr int64_t kImportedBytesMax = 256 << 10;

std::string NameOf(absl::string_view kind, uint64_t number) {
  return absl::StrCat(kind, "/", Digits(number));
}
std::string NameOf(absl::string_view kind, uint64_t job, uint64_t number) {
  return absl::StrCat(kind, "/", Digits(job), "/", Digits(number));
}

// Returns the name under which a request is stored. The id is hexadecimal, because it may contain
// '/'. Then the keys of its parts could begin like those of another name.
std::string RequestName(absl::string_view id) {
  return absl::StrCat("request/", absl::BytesToHexString(id));
}

// Combines the values of a job. `read` returns the value of a kind ("graph"). A damaged value does
// not parse. A missing origin or graph counts as damaged.
absl::StatusOr<v1::BackupJob> JobOf(
    const std::string& digits, const std::string& record,
    absl::FunctionRef<absl::StatusOr<std::optional<std::string>>(const char* kind)> read) {
  v1::BackupJob job;
  ASSIGN_OR_RETURN(const uint64_t number, NumberIn(digits, digits));
  ASSIGN_OR_RETURN(const auto origin, read("origin"));
  ASSIGN_OR_RETURN(const auto graph, read("graph"));
  ASSIGN_OR_RETURN(const auto plan, read("plan"));
  job.set_number(number);
  job.set_record(record);
  job.set_graph(graph.value_or(EtcdValues::kDamaged));
  job.set_plan(plan.value_or(""));
  if (!job.mutable_origin()->ParseFromString(origin.value_or(EtcdValues::kDamaged))) {
    LOG(ERROR) << "store: origin/" << digits << " is damaged, so job " << number << " is damaged";
    job.clear_origin();
    // Keeps the job damaged; otherwise it would start from initial values.
    job.set_graph(EtcdValues::kDamaged);
  }
  return job;
}

// Adds a job without its checkpoints to a transaction.
Writing WritingOf(const v1::BackupJob& job, Writing writing) {
  const uint64_t number = job.number();
  writing.Put(NameOf("job", number), job.record()).Put(NameOf("graph", number), job.graph());
  if (!job.plan().empty()) writing.Put(NameOf("plan", number), job.plan());
  v1::StoredEvents events;
  uint64_t last = 0;
  for (const auto& event : RowsThatParse<v1::JobEvent>(number, job.events())) {
    events.add_events(event.SerializeAsString());
    last = event.revision();
  }
  if (last > 0) writing.Put(NameOf("event", number, last), events.SerializeAsString());
  v1::StoredOrigin origin = job.origin();
  if (!origin.request_id().empty()) {
    if (v1::Job record; record.ParseFromString(job.record())) {
      v1::StoredRequest request;
      request.set_fingerprint(job.fingerprint());
      request.set_job(JobIdOf(record.name()));
      writing.Put(RequestName(origin.request_id()), request.SerializeAsString());
    } else {
      LOG(ERROR) << "backup: job " << number << ": its record is damaged, its request is left out";
      origin.clear_request_id();
    }
  }
  writing.Put(NameOf("origin", number), origin.SerializeAsString());
  return writing;
}

}  // namespace

// ---------------------------------------------------------------- leadership

absl::StatusOr<std::unique_ptr<Store>> EtcdStore::Open(Options options) {
  CHECK(options.client != nullptr);
  std::unique_ptr<EtcdStore> store(new EtcdStore(std::move(options)));
  RETURN_IF_ERROR(store->Lead());
  if (store->options_.give_up) RETURN_IF_ERROR(store->GiveUp());
  RETURN_IF_ERROR(store->LoadSeats());
  RETURN_IF_ERROR(store->values_->SweepParts());
  return store;
}

absl::Status EtcdStore::Lead() {
  uint64_t jobs = 0;
  const auto prepare = [&](const Values& meta) -> absl::StatusOr<Values> {
    const auto value_of = [&meta](const char* name) {
      const auto found = meta.find(name);
      return found == meta.end() ? "" : found->second;
    };
    const bool is_new = !meta.contains(EtcdValues::kTerm);
    if (!is_new) {
      ASSIGN_OR_RETURN(const uint64_t schema, NumberIn(kEtcdSchema, value_of(kEtcdSchema)));
      RETURN_IF_ERROR(CheckSchema(schema, kSchemaVersion));
      ASSIGN_OR_RETURN(jobs, NumberIn(kJobs, value_of(kJobs)));
    }
    if (meta.contains(kRestoring) && !options_.give_up) {
      return WithReason(absl::DataLossError("a restore of a backup into this store has not ended: "
                                            "repeat it with --force"),
                        "STORE_CORRUPT");
    }
    const std::string folder = value_of(kFolder);
    const bool is_other = !options_.folder.empty() && folder != options_.folder;
    if (is_other && !folder.empty() && !options_.adopt_folder) {
      return WithReason(
          absl::FailedPreconditionError(absl::StrCat(
              "the state folder is ", options_.folder, ", but the store in etcd belongs to ",
              folder,
              ": all coordinators of one store must have --state_dir on one volume that they "
              "share. If that volume is lost for good, --adopt_state_dir takes this one in its "
              "place")),
          "STATE_DIR_NOT_SHARED");
    }
    cluster_ = is_new ? NewClusterId() : value_of(kCluster);
    Values puts;
    if (is_new) {
      puts = {{kEtcdSchema, absl::StrCat(kSchemaVersion)}, {kCluster, cluster_}, {kJobs, "0"}};
    }
    if (is_other) puts[kFolder] = options_.folder;
    return puts;
  };
  ASSIGN_OR_RETURN(values_, EtcdValues::Lead({.client = options_.client,
                                              .prefix = options_.prefix,
                                              .address = options_.address,
                                              .lease = options_.lease,
                                              .lost = options_.lost,
                                              .observe =
                                                  [this](absl::Duration took) {
                                                    if (observe_commit_) observe_commit_(took);
                                                  }},
                                             prepare));
  term_ = values_->term();
  absl::MutexLock lock(&mu_);
  jobs_ = jobs;
  return absl::OkStatus();
}

// Deletes all data, and makes the store unusable until Import() has ended. Otherwise a coordinator
// could start with the empty store, and remove the model values of the jobs in the backup.
absl::Status EtcdStore::GiveUp() {
  Writing all;
  for (const char* kind : {"job/", "origin/", "graph/", "plan/", "event/", "checkpoint/",
                           "request/", "seat/", "token/", EtcdValues::kParts}) {
    all.DeleteAllUnder(kind);
  }
  all.Put(kRestoring, "");
  return values_->Write(all);
}

absl::Status EtcdStore::LoadSeats() {
  ASSIGN_OR_RETURN(const std::vector<Seat> seats, Seats());
  absl::MutexLock lock(&mu_);
  for (const Seat& seat : seats) seats_[seat.member] = seat.ordinal;
  return absl::OkStatus();
}

// ---------------------------------------------------------------- writing

absl::StatusOr<v1::Job> EtcdStore::AddJob(Submission submission) {
  absl::MutexLock lock(&mu_);
  const uint64_t number = jobs_ + 1;
  Writing writing = WritingOf(NewJob(number, submission), Writing());
  RETURN_IF_ERROR(values_->Write(writing.Put(kJobs, absl::StrCat(number))));
  jobs_ = number;
  return std::move(submission.record);
}

absl::Status EtcdStore::Commit(const Change& change) {
  absl::MutexLock lock(&mu_);
  Writing writing;
  absl::btree_map<std::string, uint64_t> seats;
  if (change.seat != nullptr) {
    seats = seats_;
    seats[change.seat->member] = change.seat->ordinal;
    writing.Put(absl::StrCat("seat/", change.seat->member), absl::StrCat(change.seat->ordinal));
    while (std::ssize(seats) > limits::kMembersRememberedMax) {
      const auto oldest =
          std::min_element(seats.begin(), seats.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
      writing.Delete(absl::StrCat("seat/", oldest->first));
      seats.erase(oldest);
    }
  }
  if (change.record != nullptr) {
    const v1::Job& record = *change.record;
    const uint64_t number = record.number();
    writing.Put(NameOf("job", number), record.SerializeAsString());
    if (!change.events.empty()) {
      v1::StoredEvents events;
      if (record.revision() > limits::kJobEventsKeptMax) {
        events.set_dropped(record.revision() - limits::kJobEventsKeptMax);
        writing.DeleteBetween(NameOf("event", number, 0),
                              NameOf("event", number, events.dropped() + 1));
      }
      for (const v1::JobEvent& event : change.events) {
        if (event.revision() > events.dropped()) events.add_events(event.SerializeAsString());
      }
      writing.Put(NameOf("event", number, change.events.back().revision()),
                  events.SerializeAsString());
    }
    if (record.has_end_time()) {
      writing.Delete(NameOf("plan", number));
    } else if (change.plan != nullptr) {
      writing.Put(NameOf("plan", number), change.plan->SerializeAsString());
    }
    if (change.checkpoint != nullptr) {
      writing.Put(NameOf("checkpoint", number, change.checkpoint->step()),
                  change.checkpoint->SerializeAsString());
    }
    // Removals beyond one transaction go first. The files of these checkpoints are already deleted,
    // so removing their records separately is harmless.
    Writing before;
    for (const int64_t step : change.checkpoints_removed) {
      if (change.checkpoint != nullptr && change.checkpoint->step() == step) continue;
      before.Delete(NameOf("checkpoint", number, step));
      if (std::ssize(before.deletions) < kRemovedAtOnceMax) continue;
      RETURN_IF_ERROR(values_->Write(std::exchange(before, Writing())));
    }
    for (const auto& [first, end] : before.deletions) writing.Delete(first);
  }
  RETURN_IF_ERROR(values_->Write(writing));
  if (change.seat != nullptr) seats_ = std::move(seats);
  return absl::OkStatus();
}

absl::StatusOr<bool> EtcdStore::PassOverNumbers(uint64_t last) {
  absl::MutexLock lock(&mu_);
  if (last <= jobs_) return false;
  RETURN_IF_ERROR(values_->Write(Writing().Put(kJobs, absl::StrCat(last))));
  jobs_ = last;
  return true;
}

absl::StatusOr<std::vector<std::string>> EtcdStore::RequestsOf(uint64_t number) const {
  const std::string name = NameOf("origin", number);
  auto stored = values_->Read(name);
  if (!stored.ok() && !absl::IsDataLoss(stored.status())) return stored.status();
  if (stored.ok() && !stored->has_value()) return std::vector<std::string>();
  if (stored.ok()) {
    if (const auto origin = Parsed<v1::StoredOrigin>(name, **stored); origin.ok()) {
      if (origin->request_id().empty()) return std::vector<std::string>();
      return std::vector<std::string>{RequestName(origin->request_id())};
    }
  }
  // The origin is damaged, so this searches the requests. A request names its job by id, and the id
  // ends with the number.
  ASSIGN_OR_RETURN(const Values requests, values_->ReadAll("request/"));
  std::vector<std::string> names;
  for (const auto& [hex, bytes] : requests) {
    v1::StoredRequest request;
    if (request.ParseFromString(bytes) &&
        absl::EndsWith(request.job(), absl::StrCat("-", number))) {
      names.push_back(absl::StrCat("request/", hex));
    }
  }
  return names;
}

absl::Status EtcdStore::DeleteJob(uint64_t number) {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(values_->CheckLeads());
  ASSIGN_OR_RETURN(const std::vector<std::string> requests, RequestsOf(number));
  Writing writing;
  for (const std::string& request : requests) writing.Delete(request);
  for (const char* kind : {"job", "origin", "graph", "plan"}) {
    writing.Delete(NameOf(kind, number));
  }
  for (const char* kind : {"event", "checkpoint"}) {
    writing.DeleteAllUnder(NameOf(kind, number) + "/");
  }
  return values_->Write(writing);
}

absl::Status EtcdStore::PutToken(const Token& token) {
  v1::StoredToken stored;
  stored.set_record(token.record.SerializeAsString());
  stored.set_hash(token.hash);
  return values_->Write(
      Writing().Put(absl::StrCat("token/", token.record.id()), stored.SerializeAsString()));
}

absl::Status EtcdStore::DeleteToken(const std::string& id) {
  return values_->Write(Writing().Delete(absl::StrCat("token/", id)));
}

// ---------------------------------------------------------------- reading

absl::StatusOr<std::optional<Store::Request>> EtcdStore::FindRequest(
    const std::string& request_id) const {
  if (request_id.empty()) return std::nullopt;
  const std::string name = RequestName(request_id);
  ASSIGN_OR_RETURN(const auto stored, values_->Read(name));
  if (!stored) return std::nullopt;
  ASSIGN_OR_RETURN(const auto request, Parsed<v1::StoredRequest>(name, *stored));
  return Request{request.fingerprint(), request.job()};
}

absl::StatusOr<std::vector<StoredJob>> EtcdStore::LoadJobs() const {
  ASSIGN_OR_RETURN(const Values records, values_->ReadAll("job/"));
  absl::btree_map<std::string, Values> parts;
  for (const char* kind : {"origin", "graph", "plan"}) {
    ASSIGN_OR_RETURN(parts[kind], values_->ReadAll(absl::StrCat(kind, "/")));
  }
  std::vector<StoredJob> jobs;
  for (const auto& [digits, bytes] : records) {
    const auto find =
        [&, &digits = digits](const char* kind) -> absl::StatusOr<std::optional<std::string>> {
      const auto found = parts[kind].find(digits);
      if (found == parts[kind].end()) return std::nullopt;
      return std::move(found->second);
    };
    ASSIGN_OR_RETURN(const v1::BackupJob job, JobOf(digits, bytes, find));
    jobs.push_back(ParseJob(job));
  }
  return jobs;
}

absl::StatusOr<std::vector<v1::JobEvent>> EtcdStore::Events(uint64_t number,
                                                            uint64_t after_revision,
                                                            int max) const {
  const std::string under = NameOf("event", number) + "/";
  ASSIGN_OR_RETURN(const Values values, values_->ReadAll(under, {.from = Digits(after_revision + 1),
                                                                 .page = kEventsPage}));
  std::vector<v1::StoredEvents> groups;
  for (const auto& [revision, bytes] : values) {
    ASSIGN_OR_RETURN(groups.emplace_back(), Parsed<v1::StoredEvents>(under + revision, bytes));
  }
  if (!groups.empty()) after_revision = std::max(after_revision, groups.back().dropped());
  std::vector<v1::JobEvent> events;
  for (const v1::StoredEvents& group : groups) {
    for (const std::string& bytes : group.events()) {
      ASSIGN_OR_RETURN(auto event, Parsed<v1::JobEvent>(under, bytes));
      if (event.revision() <= after_revision) continue;
      if (std::ssize(events) == max) return events;
      events.push_back(std::move(event));
    }
  }
  return events;
}

absl::StatusOr<std::vector<v1::Checkpoint>> EtcdStore::Checkpoints(uint64_t number) const {
  const std::string under = NameOf("checkpoint", number) + "/";
  ASSIGN_OR_RETURN(const Values values, values_->ReadAll(under));
  std::vector<v1::Checkpoint> checkpoints;
  for (const auto& [step, bytes] : values) {
    ASSIGN_OR_RETURN(auto checkpoint, Parsed<v1::Checkpoint>(under + step, bytes));
    checkpoints.push_back(std::move(checkpoint));
  }
  return checkpoints;
}

absl::StatusOr<std::vector<Store::Seat>> EtcdStore::Seats() const {
  ASSIGN_OR_RETURN(const Values values, values_->ReadAll("seat/"));
  std::vector<Seat> seats;
  for (const auto& [member, ordinal] : values) {
    ASSIGN_OR_RETURN(const uint64_t number, NumberIn(absl::StrCat("seat/", member), ordinal));
    seats.push_back({.member = member, .ordinal = number});
  }
  return seats;
}

absl::StatusOr<std::vector<Store::Token>> EtcdStore::Tokens() const {
  ASSIGN_OR_RETURN(const Values values, values_->ReadAll("token/"));
  std::vector<Token> tokens;
  for (const auto& [id, bytes] : values) {
    const std::string name = absl::StrCat("token/", id);
    ASSIGN_OR_RETURN(const auto stored, Parsed<v1::StoredToken>(name, bytes));
    ASSIGN_OR_RETURN(auto record, Parsed<v1::AccessToken>(name, stored.record()));
    tokens.push_back({std::move(record), stored.hash()});
  }
  return tokens;
}

// ---------------------------------------------------------------- backups

// Reads everything at one revision, which is a consistent snapshot.
absl::Status EtcdStore::Export(
    const std::function<absl::Status(const v1::BackupRecord&)>& take) const {
  ASSIGN_OR_RETURN(const int64_t revision, values_->Revision());
  ASSIGN_OR_RETURN(const auto jobs_text, values_->Read(kJobs, revision));
  ASSIGN_OR_RETURN(const uint64_t jobs, NumberIn(kJobs, jobs_text.value_or("")));
  v1::BackupRecord first;
  v1::BackupHeader& header = *first.mutable_header();
  header.set_cluster(cluster_);
  header.set_term(term_);
  header.set_jobs(jobs);
  RETURN_IF_ERROR(take(first));
  const auto leave_out = [](absl::string_view name) {
    LOG(ERROR) << "store: " << name << " is damaged and is left out of the backup";
  };
  const auto read = [&](const std::string& name) -> absl::StatusOr<std::optional<std::string>> {
    auto value = values_->Read(name, revision);
    if (absl::IsDataLoss(value.status())) return EtcdValues::kDamaged;
    return value;
  };
  ASSIGN_OR_RETURN(const Values records, values_->ReadAll("job/", {.revision = revision}));
  for (const auto& [digits, bytes] : records) {
    v1::BackupRecord record;
    v1::BackupJob& job = *record.mutable_job();
    const auto part = [&, &digits = digits](const char* kind) {
      return read(absl::StrCat(kind, "/", digits));
    };
    ASSIGN_OR_RETURN(job, JobOf(digits, bytes, part));
    const uint64_t number = job.number();
    if (!job.origin().request_id().empty()) {
      const std::string name = RequestName(job.origin().request_id());
      ASSIGN_OR_RETURN(const auto stored, read(name));
      v1::StoredRequest request;
      if (request.ParseFromString(stored.value_or(EtcdValues::kDamaged))) {
        job.set_fingerprint(request.fingerprint());
      } else {
        leave_out(absl::StrCat(name, ", of job ", number, ","));
        job.mutable_origin()->clear_request_id();
      }
    }
    const std::string under_events = NameOf("event", number) + "/";
    ASSIGN_OR_RETURN(const Values events, values_->ReadAll(under_events, {.revision = revision}));
    std::vector<v1::StoredEvents> groups;
    for (const auto& [name, bytes] : events) {
      if (v1::StoredEvents group; group.ParseFromString(bytes)) {
        groups.push_back(std::move(group));
      } else {
        leave_out(under_events + name);
      }
    }
    for (const v1::StoredEvents& group : groups) {
      for (const auto& event : RowsThatParse<v1::JobEvent>(number, group.events())) {
        if (event.revision() > groups.back().dropped()) job.add_events(event.SerializeAsString());
      }
    }
    // Import() leaves out damaged checkpoint records.
    ASSIGN_OR_RETURN(const Values checkpoints,
                     values_->ReadAll(NameOf("checkpoint", number) + "/", {.revision = revision}));
    for (const auto& [step, checkpoint] : checkpoints) job.add_checkpoints(checkpoint);
    RETURN_IF_ERROR(take(record));
  }
  ASSIGN_OR_RETURN(const Values tokens, values_->ReadAll("token/", {.revision = revision}));
  for (const auto& [id, bytes] : tokens) {
    v1::BackupRecord record;
    if (!record.mutable_token()->ParseFromString(bytes)) {
      leave_out(absl::StrCat("token/", id));
      continue;
    }
    RETURN_IF_ERROR(take(record));
  }
  return absl::OkStatus();
}

absl::Status EtcdStore::ImportJob(const v1::BackupJob& job) {
  Writing writing;
  // Checkpoints may be too many for one transaction. They are written before the job.
  int64_t bytes = 0;
  for (const auto& checkpoint : RowsThatParse<v1::Checkpoint>(job.number(), job.checkpoints())) {
    std::string value = checkpoint.SerializeAsString();
    bytes += std::ssize(value);
    writing.Put(NameOf("checkpoint", job.number(), checkpoint.step()), std::move(value));
    if (std::ssize(writing.puts) < kImportedAtOnceMax && bytes < kImportedBytesMax) continue;
    RETURN_IF_ERROR(values_->Write(std::exchange(writing, Writing())));
    bytes = 0;
  }
  return values_->Write(WritingOf(job, std::move(writing)));
}

// Uses many transactions. The key kRestoring marks the store as unusable until the last one.
absl::Status EtcdStore::Import(
    const std::function<absl::StatusOr<std::optional<v1::BackupRecord>>()>& next) {
  absl::MutexLock lock(&mu_);
  for (const char* kind : {"job/", "token/"}) {
    ASSIGN_OR_RETURN(const Values kept, values_->ReadAll(kind));
    if (!kept.empty()) return StoreNotEmpty();
  }
  RETURN_IF_ERROR(values_->Write(Writing().Put(kRestoring, "").DeleteAllUnder("seat/")));
  Writing end;
  RETURN_IF_ERROR(ForEachRecord(
      next,
      [&](const v1::BackupHeader& header) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        jobs_ = std::max(jobs_, header.jobs());
        end.Put(kJobs, absl::StrCat(jobs_));
        end.Put(EtcdValues::kTerm, absl::StrCat(std::max(term_, header.term()) + kTermsPassedOver));
        return absl::OkStatus();
      },
      [&](const v1::BackupJob& job) { return ImportJob(job); },
      [&](const std::string& id, const v1::StoredToken& token) {
        return values_->Write(Writing().Put(absl::StrCat("token/", id), token.SerializeAsString()));
      }));
  return values_->Write(end.Put(kCluster, NewClusterId()).Delete(kRestoring));
}

}  // namespace muster
