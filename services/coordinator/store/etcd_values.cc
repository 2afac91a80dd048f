#include "services/coordinator/store/etcd_values.h"

#include <glog/logging.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/status/status.h"
#include "services/coordinator/store/store_records.h"

namespace muster {
namespace {

namespace etcd = ::etcdserverpb;

constexpr absl::Duration kOpenMax = absl::Seconds(3);
constexpr absl::Duration kReadMax = absl::Seconds(5);

constexpr char kLeader[] = "leader";
constexpr char kWriting[] = "meta/writing";

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
  return absl::StrCat(EtcdValues::kParts, name, "/", writing, "/", Digits(part));
}

etcd::RangeRequest One(std::string key) {
  etcd::RangeRequest request;
  request.set_key(std::move(key));
  return request;
}

// etcd accepts 128 operations in one transaction, and an operation may be a nested transaction.
// With G groups, each group may have 128 - G operations.
constexpr int kOperationsMax = 100;

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

}  // namespace

absl::StatusOr<uint64_t> NumberIn(absl::string_view name, absl::string_view text) {
  uint64_t number;
  if (absl::SimpleAtoi(text, &number)) return number;
  return Corrupt(name, "is not a number");
}

std::string Digits(uint64_t number) { return absl::StrFormat("%020d", number); }

// ---------------------------------------------------------------- leadership

absl::StatusOr<std::unique_ptr<EtcdValues>> EtcdValues::Lead(
    Options options, absl::FunctionRef<absl::StatusOr<Values>(const Values& meta)> prepare) {
  std::unique_ptr<EtcdValues> values(new EtcdValues(std::move(options)));
  RETURN_IF_ERROR(values->TakeLead(prepare));
  return values;
}

absl::Status EtcdValues::TakeLead(
    absl::FunctionRef<absl::StatusOr<Values>(const Values& meta)> prepare) {
  etcd::TxnRequest look;
  *look.add_success()->mutable_request_range() = AllUnder(Key("meta/"));
  *look.add_success()->mutable_request_range() = One(Key(kLeader));
  ASSIGN_OR_RETURN(const etcd::TxnResponse seen, options_.client->Txn(look, kOpenMax));
  if (seen.responses_size() != 2)
    return Corrupt("etcd", "returned an unexpected number of responses");
  Values meta;
  int64_t term_revision = 0;
  for (const etcd::KeyValue& pair : seen.responses(0).response_range().kvs()) {
    const std::string name = NameOf(pair);
    meta[name] = std::string(absl::StripPrefix(pair.value(), "v"));
    if (name == kTerm) term_revision = pair.mod_revision();
  }
  ASSIGN_OR_RETURN(const Values puts, prepare(meta));
  const auto taken = [](const etcd::KeyValue& leader) {
    return WithReason(
        absl::UnavailableError(absl::StrCat("the coordinator at ", leader.value(), " leads")),
        "STORE_LOCKED");
  };
  if (const auto& leader = seen.responses(1).response_range().kvs(); !leader.empty()) {
    return taken(leader[0]);
  }
  uint64_t term = 0;
  if (term_revision != 0) {
    ASSIGN_OR_RETURN(term, NumberIn(kTerm, meta[kTerm]));
  }
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
  for (const auto& [name, value] : puts) put_meta(name, value);
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
    written_in_ = led_since_;
  }
  if (term == 0) LOG(INFO) << "new store in etcd, " << options_.prefix;
  lease_->Keep(options_.lost);
  return absl::OkStatus();
}

absl::Status EtcdValues::SweepParts() {
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
    if (named && named->writing == writing) {
      absl::MutexLock lock(&mu_);
      in_parts_.insert(name);
      continue;
    }
    LOG(INFO) << "store: removing parts of " << name << " that a crash left";
    RETURN_IF_ERROR(Write(Writing().DeleteAllUnder(absl::StrCat(kParts, name, "/", writing, "/"))));
  }
  return absl::OkStatus();
}

absl::Status EtcdValues::CheckLeads() const { return lease_->holds() ? absl::OkStatus() : Lost(); }

absl::Status EtcdValues::Lost() const {
  const absl::Status lost = WithReason(
      absl::FailedPreconditionError("store: this coordinator no longer leads; nothing was written"),
      "STORE_LOST");
  options_.lost(lost);
  return lost;
}

// ---------------------------------------------------------------- writing

absl::Status EtcdValues::Transact(etcd::TxnRequest request) {
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
    if (refused.ok() && options_.observe) options_.observe(SteadyNow() - start);
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

absl::Status EtcdValues::Write(const Writing& writing) {
  absl::MutexLock lock(&mu_);
  etcd::TxnRequest request;
  const auto add_deletion = [&](const std::string& first, const std::string& end) {
    etcd::DeleteRangeRequest* deletion = request.add_success()->mutable_request_delete_range();
    deletion->set_key(Key(first));
    if (!end.empty()) deletion->set_range_end(Key(end));
  };
  std::vector<std::string> without_parts;  // erased from in_parts_ after the write
  for (const auto& [first, end] : writing.deletions) {
    add_deletion(first, end);
    const auto from = in_parts_.lower_bound(first);
    auto to = from;
    while (to != in_parts_.end() && (end.empty() ? *to == first : *to < end)) ++to;
    if (from == to) continue;
    without_parts.insert(without_parts.end(), from, to);
    const std::string under = absl::StrCat(kParts, first, end.empty() ? "/" : "");
    add_deletion(under, end.empty() ? BehindPrefix(under) : absl::StrCat(kParts, end));
  }
  for (const auto& [name, value] : writing.puts) {
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

// ---------------------------------------------------------------- reading

std::string EtcdValues::Key(absl::string_view name) const {
  return absl::StrCat(options_.prefix, name);
}

std::string EtcdValues::NameOf(const etcd::KeyValue& pair) const {
  return std::string(absl::StripPrefix(pair.key(), options_.prefix));
}

absl::StatusOr<std::string> EtcdValues::Whole(const std::string& name, absl::string_view stored,
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

absl::StatusOr<std::optional<std::string>> EtcdValues::Read(const std::string& name,
                                                            int64_t revision) const {
  etcd::RangeRequest request = One(Key(name));
  request.set_revision(revision);
  ASSIGN_OR_RETURN(const auto found, options_.client->Range(request, kReadMax));
  if (found.kvs().empty()) return std::nullopt;
  return Whole(name, found.kvs(0).value(), revision);
}

absl::StatusOr<EtcdValues::Values> EtcdValues::ReadAll(const std::string& prefix,
                                                       const Part& part) const {
  Values values;
  int64_t revision = part.revision;
  etcd::RangeRequest request = AllUnder(Key(prefix));
  request.set_key(Key(prefix + part.from));
  request.set_limit(part.page);
  request.set_revision(revision);
  while (true) {
    ASSIGN_OR_RETURN(const etcd::RangeResponse page, options_.client->Range(request, kReadMax));
    for (const etcd::KeyValue& pair : page.kvs()) {
      const std::string name = NameOf(pair);
      absl::StatusOr<std::string> whole = Whole(name, pair.value(), revision);
      if (absl::IsDataLoss(whole.status())) whole = std::string(kDamaged);
      RETURN_IF_ERROR(whole.status());
      values[std::string(absl::StripPrefix(name, prefix))] = *std::move(whole);
    }
    if (!page.more() || page.kvs().empty()) return values;
    request.set_key(absl::StrCat(page.kvs().rbegin()->key(), absl::string_view("\0", 1)));
    if (revision == 0) request.set_revision(revision = page.header().revision());
  }
}

absl::StatusOr<int64_t> EtcdValues::Revision() const {
  ASSIGN_OR_RETURN(const etcd::RangeResponse now,
                   options_.client->Range(One(Key(kTerm)), kReadMax));
  return now.header().revision();
}

}  // namespace muster
