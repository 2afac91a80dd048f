#include "services/coordinator/store/etcd_store.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "proto/muster/v1/store.pb.h"
#include "services/coordinator/store/cluster_id.h"
#include "services/coordinator/store/store_records.h"

namespace muster {
namespace {

namespace etcd = ::etcdserverpb;

constexpr absl::Duration kReadMax = absl::Seconds(5);
constexpr absl::Duration kOpenMax = absl::Seconds(3);
// Number of values in one page of a read. Each has up to kInlineBytesMax, so a slow link delivers a
// page within kReadMax.
constexpr int kPage = 32;
constexpr int kEventsPage = 256;  // events are rarely long

constexpr char kLeader[] = "leader";
constexpr char kEtcdSchema[] = "meta/schema";
constexpr char kCluster[] = "meta/cluster";
constexpr char kTerm[] = "meta/term";
constexpr char kJobs[] = "meta/jobs";
constexpr char kFolder[] = "meta/folder";
constexpr char kRestoring[] = "meta/restoring";
constexpr char kWriting[] = "meta/writing";
constexpr char kParts[] = "part/";
constexpr char kDamaged[] = "\xff";  // never parses as a message

std::string Digits(uint64_t number) { return absl::StrFormat("%020d", number); }

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

absl::StatusOr<uint64_t> NumberIn(absl::string_view name, absl::string_view text) {
  uint64_t number;
  if (absl::SimpleAtoi(text, &number)) return number;
  return Corrupt(name, "is not a number");
}

// The location of a value that is stored in parts.
struct PartsOf {
  std::string writing;
  int64_t count = 0;
};

std::optional<PartsOf> ReadParts(absl::string_view stored) {
  if (!absl::ConsumePrefix(&stored, "p")) return std::nullopt;
  const std::pair<std::string, std::string> fields =
      absl::StrSplit(stored, absl::MaxSplits('/', 1));
  PartsOf parts{.writing = fields.first};
  if (!absl::SimpleAtoi(fields.second, &parts.count)) return std::nullopt;
  return parts;
}

std::string PartName(absl::string_view name, absl::string_view writing, int64_t part) {
  return absl::StrCat(kParts, name, "/", writing, "/", Digits(part));
}

etcd::RangeRequest One(std::string key) {
  etcd::RangeRequest request;
  request.set_key(std::move(key));
  return request;
}

// etcd accepts 128 operations in one transaction, and an operation may be a nested transaction.
// With G groups, each group may have 128 - G operations.
constexpr int kOperationsMax = 100;
constexpr int kRemovedAtOnceMax = 1000;  // checkpoints; each may need two operations
constexpr int kImportedAtOnceMax = 100;  // checkpoints
// Total size of the checkpoints in one transaction; other data of the job is added to it.
constexpr int64_t kImportedBytesMax = 256 << 10;

etcd::TxnRequest InGroups(etcd::TxnRequest request) {
  if (request.success_size() <= kOperationsMax) return request;
  etcd::TxnRequest groups;
  for (int operation = 0; operation < request.success_size(); ++operation) {
    if (operation % kOperationsMax == 0) groups.add_success()->mutable_request_txn();
    *groups.mutable_success()->rbegin()->mutable_request_txn()->add_success() =
        std::move(*request.mutable_success(operation));
  }
  return groups;
}

etcd::PutRequest* AddPut(etcd::TxnRequest& request, std::string key, std::string value) {
  etcd::PutRequest* put = request.add_success()->mutable_request_put();
  put->set_key(std::move(key));
  put->set_value(std::move(value));
  return put;
}

// Adds a condition: the transaction writes only if the key was created, or last changed, in this
// revision. 0: only if there is no such key.
void Require(etcd::TxnRequest& request, etcd::Compare::CompareTarget target, std::string key,
             int64_t revision) {
  etcd::Compare* compare = request.add_compare();
  compare->set_key(std::move(key));
  compare->set_target(target);
  if (target == etcd::Compare::CREATE) compare->set_create_revision(revision);
  if (target == etcd::Compare::MOD) compare->set_mod_revision(revision);
}

etcd::RangeRequest AllUnder(const std::string& prefix) {
  etcd::RangeRequest request;
  request.set_key(prefix);
  request.set_range_end(BehindPrefix(prefix));
  return request;
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
  job.set_graph(graph.value_or(kDamaged));
  job.set_plan(plan.value_or(""));
  if (!job.mutable_origin()->ParseFromString(origin.value_or(kDamaged))) {
    LOG(ERROR) << "store: origin/" << digits << " is damaged, so job " << number << " is damaged";
    job.clear_origin();
    // Keeps the job damaged; otherwise it would start from initial values.
    job.set_graph(kDamaged);
  }
  return job;
}

}  // namespace

// The puts and deletions of one transaction, by name. Parts are deleted with their names.
class EtcdStore::Writing {
 public:
  Writing& Put(std::string name, std::string value) {
    puts_[std::move(name)] = std::move(value);
    return *this;
  }
  Writing& Delete(std::string name) { return DeleteBetween(std::move(name), ""); }
  Writing& DeleteAllUnder(const std::string& prefix) {
    return DeleteBetween(prefix, BehindPrefix(prefix));
  }
  // Deletes the names from `first` to before `end`.
  Writing& DeleteBetween(std::string first, std::string end) {
    deletions_.push_back({std::move(first), std::move(end)});
    return *this;
  }

  struct Deletion {
    std::string first;
    std::string end;  // "": `first` alone
  };
  const absl::btree_map<std::string, std::string>& puts() const { return puts_; }
  const std::vector<Deletion>& deletions() const { return deletions_; }

 private:
  absl::btree_map<std::string, std::string> puts_;
  std::vector<Deletion> deletions_;
};

// Adds a job without its checkpoints to a transaction.
EtcdStore::Writing EtcdStore::WritingOf(const v1::BackupJob& job, Writing writing) {
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

// ---------------------------------------------------------------- leadership

absl::StatusOr<std::unique_ptr<Store>> EtcdStore::Open(Options options) {
  CHECK(options.client != nullptr);
  std::unique_ptr<EtcdStore> store(new EtcdStore(std::move(options)));
  RETURN_IF_ERROR(store->Lead());
  if (store->options_.give_up) RETURN_IF_ERROR(store->GiveUp());
  RETURN_IF_ERROR(store->LoadSeats());
  RETURN_IF_ERROR(store->SweepParts());
  return store;
}

std::string EtcdStore::Key(absl::string_view name) const {
  return absl::StrCat(options_.prefix, name);
}

absl::Status EtcdStore::Lead() {
  etcd::TxnRequest look;
  *look.add_success()->mutable_request_range() = AllUnder(Key("meta/"));
  *look.add_success()->mutable_request_range() = One(Key(kLeader));
  ASSIGN_OR_RETURN(const etcd::TxnResponse seen, options_.client->Txn(look, kOpenMax));
  if (seen.responses_size() != 2)
    return Corrupt("etcd", "returned an unexpected number of responses");
  absl::btree_map<std::string, std::string> meta;
  int64_t term_revision = 0;
  for (const etcd::KeyValue& pair : seen.responses(0).response_range().kvs()) {
    const std::string name(absl::StripPrefix(pair.key(), options_.prefix));
    meta[name] = std::string(absl::StripPrefix(pair.value(), "v"));
    if (name == kTerm) term_revision = pair.mod_revision();
  }
  const bool is_new = term_revision == 0;
  if (!is_new) {
    ASSIGN_OR_RETURN(const uint64_t schema, NumberIn(kEtcdSchema, meta[kEtcdSchema]));
    RETURN_IF_ERROR(CheckSchema(schema, kSchemaVersion));
  }
  if (meta.contains(kRestoring) && !options_.give_up) {
    return WithReason(absl::DataLossError("a restore of a backup into this store has not ended: "
                                          "repeat it with --force"),
                      "STORE_CORRUPT");
  }
  const std::string& folder = meta[kFolder];
  if (!options_.folder.empty() && !folder.empty() && folder != options_.folder &&
      !options_.adopt_folder) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            "the state folder is ", options_.folder, ", but the store in etcd belongs to ", folder,
            ": all coordinators of one store must have --state_dir on one volume that they share. "
            "If that volume is lost for good, --adopt_state_dir takes this one in its place")),
        "STATE_DIR_NOT_SHARED");
  }
  const auto taken = [](const etcd::KeyValue& leader) {
    return WithReason(
        absl::UnavailableError(absl::StrCat("the coordinator at ", leader.value(), " leads")),
        "STORE_LOCKED");
  };
  if (const auto& leader = seen.responses(1).response_range().kvs(); !leader.empty()) {
    return taken(leader[0]);
  }
  uint64_t term = 0, jobs = 0;
  if (!is_new) {
    ASSIGN_OR_RETURN(term, NumberIn(kTerm, meta[kTerm]));
    ASSIGN_OR_RETURN(jobs, NumberIn(kJobs, meta[kJobs]));
  }
  cluster_ = is_new ? NewClusterId() : meta[kCluster];
  ASSIGN_OR_RETURN(lease_, EtcdLease::Grant(options_.client, options_.lease));

  etcd::TxnRequest take;
  Require(take, etcd::Compare::CREATE, Key(kLeader), 0);
  Require(take, etcd::Compare::MOD, Key(kTerm), term_revision);
  const auto put_meta = [&](absl::string_view name, absl::string_view value) {
    AddPut(take, Key(name), absl::StrCat("v", value));
  };
  AddPut(take, Key(kLeader), options_.address)->set_lease(lease_->id());
  put_meta(kTerm, absl::StrCat(term + 1));
  put_meta(kWriting, absl::StrCat(term + 1, "/0"));
  if (is_new) {
    put_meta(kEtcdSchema, absl::StrCat(kSchemaVersion));
    put_meta(kCluster, cluster_);
    put_meta(kJobs, "0");
  }
  if (!options_.folder.empty() && folder != options_.folder) put_meta(kFolder, options_.folder);
  *take.add_failure()->mutable_request_range() = One(Key(kLeader));
  ASSIGN_OR_RETURN(const etcd::TxnResponse answer, options_.client->Txn(take, kOpenMax));
  led_since_ = answer.header().revision();
  if (!answer.succeeded()) {
    // Our own transaction may have succeeded, and its first answer was lost.
    const auto& leader = answer.responses(0).response_range().kvs();
    if (leader.empty() || leader[0].lease() != lease_->id()) {
      return leader.empty()
                 ? WithReason(absl::UnavailableError("another coordinator became the leader first"),
                              "STORE_LOCKED")
                 : taken(leader[0]);
    }
    led_since_ = leader[0].create_revision();
  }
  term_ = term + 1;
  {
    absl::MutexLock lock(&mu_);
    jobs_ = jobs;
    written_in_ = led_since_;
  }
  if (is_new) LOG(INFO) << "new store in etcd, " << options_.prefix;
  lease_->Keep(options_.lost);
  return absl::OkStatus();
}

// Deletes all data, and makes the store unusable until Import() has ended. Otherwise a coordinator
// could start with the empty store, and remove the model values of the jobs in the backup.
absl::Status EtcdStore::GiveUp() {
  absl::MutexLock lock(&mu_);
  Writing all;
  for (const char* kind : {"job/", "origin/", "graph/", "plan/", "event/", "checkpoint/",
                           "request/", "seat/", "token/", kParts}) {
    all.DeleteAllUnder(kind);
  }
  all.Put(kRestoring, "");
  return Write(all);
}

absl::Status EtcdStore::LoadSeats() {
  ASSIGN_OR_RETURN(const std::vector<Seat> seats, Seats());
  absl::MutexLock lock(&mu_);
  for (const Seat& seat : seats) seats_[seat.member] = seat.ordinal;
  return absl::OkStatus();
}

absl::Status EtcdStore::SweepParts() {
  etcd::RangeRequest request = AllUnder(Key(kParts));
  request.set_keys_only(true);
  ASSIGN_OR_RETURN(const etcd::RangeResponse parts, options_.client->Range(request, kReadMax));
  absl::btree_set<std::pair<std::string, std::string>> writings;  // pairs of name and writing
  for (const etcd::KeyValue& part : parts.kvs()) {
    std::vector<std::string> words =
        absl::StrSplit(absl::StripPrefix(part.key(), Key(kParts)), '/');
    if (words.size() < 3) continue;
    words.pop_back();
    const std::string writing = words.back();
    words.pop_back();
    writings.emplace(absl::StrJoin(words, "/"), writing);
  }
  for (const auto& [name, writing] : writings) {
    ASSIGN_OR_RETURN(const etcd::RangeResponse value,
                     options_.client->Range(One(Key(name)), kReadMax));
    const auto named = value.kvs().empty() ? std::nullopt : ReadParts(value.kvs(0).value());
    absl::MutexLock lock(&mu_);
    if (named && named->writing == writing) {
      in_parts_.insert(name);
      continue;
    }
    LOG(INFO) << "store: removing parts of " << name << " that a crash left";
    RETURN_IF_ERROR(Write(Writing().DeleteAllUnder(absl::StrCat(kParts, name, "/", writing, "/"))));
  }
  return absl::OkStatus();
}

absl::Status EtcdStore::Lost() const {
  const absl::Status lost = WithReason(
      absl::FailedPreconditionError("store: this coordinator no longer leads; nothing was written"),
      "STORE_LOST");
  options_.lost(lost);
  return lost;
}

// ---------------------------------------------------------------- writing

absl::Status EtcdStore::Transact(etcd::TxnRequest request) {
  const std::string number = absl::StrCat("v", term_, "/", ++transactions_);
  const bool puts = std::any_of(request.success().begin(), request.success().end(),
                                [](const etcd::RequestOp& op) { return op.has_request_put(); });
  if (puts) AddPut(request, Key(kWriting), number);
  request = InGroups(std::move(request));
  Require(request, etcd::Compare::CREATE, Key(kLeader), led_since_);
  Require(request, etcd::Compare::MOD, Key(kWriting), written_in_);
  etcd::TxnRequest look;
  *look.add_success()->mutable_request_range() = One(Key(kWriting));
  *request.mutable_failure() = look.success();

  const absl::Duration start = SteadyNow();
  // The error with which etcd refused the request. After it the loop only asks whether an earlier
  // attempt was executed.
  absl::Status refused;
  while (true) {
    if (!lease_->holds()) return Lost();
    const auto answer = options_.client->Txn(refused.ok() ? request : look, lease_->left());
    if (ReasonOf(answer.status()) == "STORE_UNREACHABLE") continue;
    if (refused.ok() && observe_commit_) observe_commit_(SteadyNow() - start);
    if (!answer.ok()) {
      if (!puts || !refused.ok()) return refused.ok() ? answer.status() : refused;
      refused = answer.status();
      continue;
    }
    if (refused.ok() && answer->succeeded()) {
      if (puts) written_in_ = answer->header().revision();
      return absl::OkStatus();
    }
    if (answer->responses_size() == 1) {
      const auto& last = answer->responses(0).response_range().kvs();
      if (puts && !last.empty() && last[0].value() == number) {
        written_in_ = last[0].mod_revision();
        return absl::OkStatus();
      }
    }
    // A delayed attempt may still be executed after this refusal. Then the next transaction is out
    // of its turn and fails, so nothing builds on the wrong result.
    return refused.ok() ? Lost() : refused;
  }
}

absl::Status EtcdStore::Write(const Writing& writing) {
  etcd::TxnRequest request;
  const auto add_deletion = [&](const std::string& first, const std::string& end) {
    etcd::DeleteRangeRequest* deletion = request.add_success()->mutable_request_delete_range();
    deletion->set_key(Key(first));
    if (!end.empty()) deletion->set_range_end(Key(end));
  };
  std::vector<std::string> without_parts;  // erased from in_parts_ after the write
  for (const auto& [first, end] : writing.deletions()) {
    add_deletion(first, end);
    const auto from = in_parts_.lower_bound(first);
    auto to = from;
    while (to != in_parts_.end() && (end.empty() ? *to == first : *to < end)) ++to;
    if (from == to) continue;
    without_parts.insert(without_parts.end(), from, to);
    const std::string under = absl::StrCat(kParts, first, end.empty() ? "/" : "");
    add_deletion(under, end.empty() ? BehindPrefix(under) : absl::StrCat(kParts, end));
  }
  for (const auto& [name, value] : writing.puts()) {
    std::string stored;
    const std::string number = absl::StrCat(Digits(term_), Digits(++writings_));
    const bool had_parts = in_parts_.contains(name);
    if (static_cast<int64_t>(value.size()) <= kInlineBytesMax) {
      stored = absl::StrCat("v", value);
      if (had_parts) without_parts.push_back(name);
    } else {
      in_parts_.insert(name);
      int64_t parts = 0;
      for (size_t offset = 0; offset < value.size(); offset += kPartBytesMax) {
        etcd::TxnRequest part;
        AddPut(part, Key(PartName(name, number, parts++)), value.substr(offset, kPartBytesMax));
        RETURN_IF_ERROR(Transact(std::move(part)));
      }
      stored = absl::StrCat("p", number, "/", parts);
    }
    if (had_parts) {  // parts of earlier writings
      const std::string under = absl::StrCat(kParts, name, "/");
      add_deletion(under, absl::StrCat(under, number));
    }
    AddPut(request, Key(name), std::move(stored));
  }
  RETURN_IF_ERROR(Transact(std::move(request)));
  for (const std::string& name : without_parts) in_parts_.erase(name);
  return absl::OkStatus();
}

absl::StatusOr<v1::Job> EtcdStore::AddJob(Submission submission) {
  absl::MutexLock lock(&mu_);
  const uint64_t number = jobs_ + 1;
  Writing writing = WritingOf(NewJob(number, submission), Writing());
  RETURN_IF_ERROR(Write(writing.Put(kJobs, absl::StrCat(number))));
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
      if (std::ssize(before.deletions()) < kRemovedAtOnceMax) continue;
      RETURN_IF_ERROR(Write(std::exchange(before, Writing())));
    }
    for (const Writing::Deletion& deletion : before.deletions()) writing.Delete(deletion.first);
  }
  RETURN_IF_ERROR(Write(writing));
  if (change.seat != nullptr) seats_ = std::move(seats);
  return absl::OkStatus();
}

absl::StatusOr<bool> EtcdStore::PassOverNumbers(uint64_t last) {
  absl::MutexLock lock(&mu_);
  if (last <= jobs_) return false;
  RETURN_IF_ERROR(Write(Writing().Put(kJobs, absl::StrCat(last))));
  jobs_ = last;
  return true;
}

absl::StatusOr<std::vector<std::string>> EtcdStore::RequestsOf(uint64_t number) const {
  const std::string name = NameOf("origin", number);
  auto stored = Read(name);
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
  ASSIGN_OR_RETURN(const Values requests, ReadAll("request/"));
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
  if (!lease_->holds()) return Lost();
  ASSIGN_OR_RETURN(const std::vector<std::string> requests, RequestsOf(number));
  Writing writing;
  for (const std::string& request : requests) writing.Delete(request);
  for (const char* kind : {"job", "origin", "graph", "plan"}) {
    writing.Delete(NameOf(kind, number));
  }
  for (const char* kind : {"event", "checkpoint"}) {
    writing.DeleteAllUnder(NameOf(kind, number) + "/");
  }
  return Write(writing);
}

absl::Status EtcdStore::PutToken(const Token& token) {
  v1::StoredToken stored;
  stored.set_record(token.record.SerializeAsString());
  stored.set_hash(token.hash);
  absl::MutexLock lock(&mu_);
  return Write(
      Writing().Put(absl::StrCat("token/", token.record.id()), stored.SerializeAsString()));
}

absl::Status EtcdStore::DeleteToken(const std::string& id) {
  absl::MutexLock lock(&mu_);
  return Write(Writing().Delete(absl::StrCat("token/", id)));
}

// ---------------------------------------------------------------- reading

absl::StatusOr<std::string> EtcdStore::Whole(const std::string& name, absl::string_view stored,
                                             int64_t revision) const {
  if (absl::ConsumePrefix(&stored, "v")) return std::string(stored);
  const auto parts = ReadParts(stored);
  if (!parts) return Corrupt(name, "is neither a value nor parts of one");
  std::string whole;
  for (int64_t part = 0; part < parts->count; ++part) {
    const std::string part_name = PartName(name, parts->writing, part);
    etcd::RangeRequest request = One(Key(part_name));
    request.set_revision(revision);
    ASSIGN_OR_RETURN(const auto found, options_.client->Range(request, kReadMax));
    if (found.kvs().empty()) return Corrupt(part_name, "is missing");
    whole += found.kvs(0).value();
  }
  return whole;
}

absl::StatusOr<std::optional<std::string>> EtcdStore::Read(const std::string& name,
                                                           int64_t revision) const {
  etcd::RangeRequest request = One(Key(name));
  request.set_revision(revision);
  ASSIGN_OR_RETURN(const auto found, options_.client->Range(request, kReadMax));
  if (found.kvs().empty()) return std::nullopt;
  return Whole(name, found.kvs(0).value(), revision);
}

absl::StatusOr<EtcdStore::Values> EtcdStore::ReadAll(const std::string& prefix,
                                                     int64_t revision) const {
  Values values;
  etcd::RangeRequest request = AllUnder(Key(prefix));
  request.set_limit(kPage);
  request.set_revision(revision);
  while (true) {
    ASSIGN_OR_RETURN(const etcd::RangeResponse page, options_.client->Range(request, kReadMax));
    for (const etcd::KeyValue& pair : page.kvs()) {
      const std::string name(absl::StripPrefix(pair.key(), options_.prefix));
      absl::StatusOr<std::string> whole = Whole(name, pair.value(), revision);
      // A damaged value becomes one that does not parse. Each caller handles that.
      if (absl::IsDataLoss(whole.status())) whole = std::string(kDamaged);
      RETURN_IF_ERROR(whole.status());
      values[std::string(absl::StripPrefix(name, prefix))] = *std::move(whole);
    }
    if (!page.more() || page.kvs().empty()) return values;
    request.set_key(absl::StrCat(page.kvs().rbegin()->key(), absl::string_view("\0", 1)));
    if (revision == 0) request.set_revision(revision = page.header().revision());
  }
}

absl::StatusOr<std::optional<Store::Request>> EtcdStore::FindRequest(
    const std::string& request_id) const {
  if (request_id.empty()) return std::nullopt;
  const std::string name = RequestName(request_id);
  ASSIGN_OR_RETURN(const auto stored, Read(name));
  if (!stored) return std::nullopt;
  ASSIGN_OR_RETURN(const auto request, Parsed<v1::StoredRequest>(name, *stored));
  return Request{request.fingerprint(), request.job()};
}

absl::StatusOr<std::vector<StoredJob>> EtcdStore::LoadJobs() const {
  ASSIGN_OR_RETURN(const Values records, ReadAll("job/"));
  absl::btree_map<std::string, Values> parts;
  for (const char* kind : {"origin", "graph", "plan"}) {
    ASSIGN_OR_RETURN(parts[kind], ReadAll(absl::StrCat(kind, "/")));
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
  etcd::TxnRequest request;
  etcd::RangeRequest* newest = request.add_success()->mutable_request_range();
  *newest = AllUnder(Key(under));
  newest->set_limit(1);
  newest->set_sort_order(etcd::RangeRequest::DESCEND);
  etcd::RangeRequest* some = request.add_success()->mutable_request_range();
  *some = AllUnder(Key(under));
  some->set_key(Key(NameOf("event", number, after_revision + 1)));
  some->set_limit(kEventsPage);
  uint64_t dropped = 0;
  std::vector<v1::JobEvent> events;
  while (true) {
    ASSIGN_OR_RETURN(const etcd::TxnResponse answer, options_.client->Txn(request, kReadMax));
    if (answer.responses_size() != 2)
      return Corrupt("etcd", "returned an unexpected number of responses");
    for (const auto* range :
         {&answer.responses(0).response_range(), &answer.responses(1).response_range()}) {
      for (const etcd::KeyValue& pair : range->kvs()) {
        const std::string name(absl::StripPrefix(pair.key(), options_.prefix));
        ASSIGN_OR_RETURN(const std::string bytes, Whole(name, pair.value()));
        ASSIGN_OR_RETURN(const auto stored, Parsed<v1::StoredEvents>(name, bytes));
        dropped = std::max(dropped, stored.dropped());
        if (range == &answer.responses(0).response_range()) continue;  // read only for `dropped`
        for (const std::string& event_bytes : stored.events()) {
          ASSIGN_OR_RETURN(auto event, Parsed<v1::JobEvent>(name, event_bytes));
          if (event.revision() <= std::max(after_revision, dropped)) continue;
          if (std::ssize(events) == max) return events;
          events.push_back(std::move(event));
        }
      }
    }
    const etcd::RangeResponse& page = answer.responses(1).response_range();
    if (!page.more() || page.kvs().empty()) return events;
    some->set_key(absl::StrCat(page.kvs().rbegin()->key(), absl::string_view("\0", 1)));
  }
}

absl::StatusOr<std::vector<v1::Checkpoint>> EtcdStore::Checkpoints(uint64_t number) const {
  const std::string under = NameOf("checkpoint", number) + "/";
  ASSIGN_OR_RETURN(const Values values, ReadAll(under));
  std::vector<v1::Checkpoint> checkpoints;
  for (const auto& [step, bytes] : values) {
    ASSIGN_OR_RETURN(auto checkpoint, Parsed<v1::Checkpoint>(under + step, bytes));
    checkpoints.push_back(std::move(checkpoint));
  }
  return checkpoints;
}

absl::StatusOr<std::vector<Store::Seat>> EtcdStore::Seats() const {
  ASSIGN_OR_RETURN(const Values values, ReadAll("seat/"));
  std::vector<Seat> seats;
  for (const auto& [member, ordinal] : values) {
    ASSIGN_OR_RETURN(const uint64_t number, NumberIn(absl::StrCat("seat/", member), ordinal));
    seats.push_back({.member = member, .ordinal = number});
  }
  return seats;
}

absl::StatusOr<std::vector<Store::Token>> EtcdStore::Tokens() const {
  ASSIGN_OR_RETURN(const Values values, ReadAll("token/"));
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

// Reads everything at the revision of the first answer, which is a consistent snapshot.
absl::Status EtcdStore::Export(
    const std::function<absl::Status(const v1::BackupRecord&)>& take) const {
  ASSIGN_OR_RETURN(const etcd::RangeResponse now,
                   options_.client->Range(One(Key(kJobs)), kReadMax));
  const int64_t revision = now.header().revision();
  v1::BackupRecord first;
  v1::BackupHeader& header = *first.mutable_header();
  header.set_cluster(cluster_);
  header.set_term(term_);
  if (now.kvs().empty()) return Corrupt(kJobs, "is missing");
  ASSIGN_OR_RETURN(const uint64_t jobs,
                   NumberIn(kJobs, absl::StripPrefix(now.kvs(0).value(), "v")));
  header.set_jobs(jobs);
  RETURN_IF_ERROR(take(first));
  const auto leave_out = [](absl::string_view name) {
    LOG(ERROR) << "store: " << name << " is damaged and is left out of the backup";
  };
  const auto read = [&](const std::string& name) -> absl::StatusOr<std::optional<std::string>> {
    auto value = Read(name, revision);
    if (absl::IsDataLoss(value.status())) return kDamaged;
    return value;
  };
  ASSIGN_OR_RETURN(const Values records, ReadAll("job/", revision));
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
      if (request.ParseFromString(stored.value_or(kDamaged))) {
        job.set_fingerprint(request.fingerprint());
      } else {
        leave_out(absl::StrCat(name, ", of job ", number, ","));
        job.mutable_origin()->clear_request_id();
      }
    }
    const std::string under_events = NameOf("event", number) + "/";
    ASSIGN_OR_RETURN(const Values events, ReadAll(under_events, revision));
    uint64_t dropped = 0;
    std::vector<v1::JobEvent> read_events;
    for (const auto& [name, group] : events) {
      v1::StoredEvents stored;
      if (!stored.ParseFromString(group)) {
        leave_out(under_events + name);
        continue;
      }
      dropped = std::max(dropped, stored.dropped());
      for (auto& event : RowsThatParse<v1::JobEvent>(number, stored.events())) {
        read_events.push_back(std::move(event));
      }
    }
    for (const v1::JobEvent& event : read_events) {
      if (event.revision() > dropped) job.add_events(event.SerializeAsString());
    }
    // Import() leaves out damaged checkpoint records.
    ASSIGN_OR_RETURN(const Values checkpoints,
                     ReadAll(NameOf("checkpoint", number) + "/", revision));
    for (const auto& [step, checkpoint] : checkpoints) job.add_checkpoints(checkpoint);
    RETURN_IF_ERROR(take(record));
  }
  ASSIGN_OR_RETURN(const Values tokens, ReadAll("token/", revision));
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
    if (std::ssize(writing.puts()) < kImportedAtOnceMax && bytes < kImportedBytesMax) continue;
    RETURN_IF_ERROR(Write(std::exchange(writing, Writing())));
    bytes = 0;
  }
  return Write(WritingOf(job, std::move(writing)));
}

// Uses many transactions. The key kRestoring marks the store as unusable until the last one.
absl::Status EtcdStore::Import(
    const std::function<absl::StatusOr<std::optional<v1::BackupRecord>>()>& next) {
  absl::MutexLock lock(&mu_);
  for (const char* kind : {"job/", "token/"}) {
    ASSIGN_OR_RETURN(const Values kept, ReadAll(kind));
    if (!kept.empty()) return StoreNotEmpty();
  }
  RETURN_IF_ERROR(Write(Writing().Put(kRestoring, "").DeleteAllUnder("seat/")));
  Writing end;
  RETURN_IF_ERROR(ForEachRecord(
      next,
      [&](const v1::BackupHeader& header) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        jobs_ = std::max(jobs_, header.jobs());
        end.Put(kJobs, absl::StrCat(jobs_));
        end.Put(kTerm, absl::StrCat(std::max(term_, header.term()) + kTermsPassedOver));
        return absl::OkStatus();
      },
      [&](const v1::BackupJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ImportJob(job); },
      [&](const std::string& id, const v1::StoredToken& token) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return Write(Writing().Put(absl::StrCat("token/", id), token.SerializeAsString()));
      }));
  return Write(end.Put(kCluster, NewClusterId()).Delete(kRestoring));
}

}  // namespace muster
