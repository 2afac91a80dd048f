// The store of several coordinators: keys of etcd, written by whoever leads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/third_party/etcd/rpc.pb.h"
#include "services/coordinator/store/etcd_client.h"
#include "services/coordinator/store/etcd_lease.h"
#include "services/coordinator/store/store.h"

namespace muster {

// Who leads has the key "leader", under a lease. Every write is one transaction of etcd that says
// when that key was made: when it is not ours any more nothing is written, the caller gets
// FAILED_PRECONDITION (reason "STORE_LOST"), and `lost` is told.
//
// Whether a transaction was made is not known when nobody answers in time, and one that was held up
// may still come long after it was made again. So each also says after which one it comes, by the
// revision of "meta/writing", and puts its own number there: out of its turn nothing is written,
// and that key tells which was the last. (Only one that merely deletes puts no number, for etcd
// takes it when its space is used up: to make it again before the next writing changes nothing.)
//
//   meta/schema, meta/cluster, meta/term, meta/jobs   numbers as text; the last job's
//   meta/folder                                       the state folder that belongs to it
//   meta/restoring                                    a restore has begun and not ended
//   meta/writing                                      TERM/NUMBER of the last transaction that put
//   leader                                            the leader's address
//   job/N, origin/N, graph/N, plan/N                  N, STEP, REVISION: 20 digits
//   event/N/REVISION                                  StoredEvents, by the last one's revision
//   checkpoint/N/STEP
//   request/HEX, seat/MEMBER, token/ID                HEX: the id's bytes, which may be any
//   part/KEY/WRITING/I                                what is too long for the value of KEY
//
// A value begins with 'v' and is itself, or with 'p' and names the writing and the number of its
// parts. Parts are written before the transaction that names them; what a crash left of others is
// swept when the store is opened.
class EtcdStore final : public Store {
 public:
  static constexpr int kSchemaVersion = 1;
  static constexpr int64_t kInlineBytesMax = 128 << 10;  // etcd takes 1.5 MB in one transaction
  static constexpr int64_t kPartBytesMax = 512 << 10;

  struct Options {
    EtcdClient* client = nullptr;     // outlives the store
    std::string prefix = "/muster/";  // of all keys
    std::string address;              // of this coordinator, for who asks in vain
    absl::Duration lease = absl::Seconds(5);
    // The state folder's id: coordinators that take turns must have the same one. "": any.
    std::string folder;
    bool give_up = false;       // all jobs and tokens that it has; no store until Import() ends
    bool adopt_folder = false;  // `folder` takes the place of the one that the store knows
    // This process leads no more and must end; on any thread, more than once.
    std::function<void(const absl::Status&)> lost = [](const absl::Status&) {};
  };
  // Leads from now on, with a higher term, or says why not: UNAVAILABLE (reason "STORE_LOCKED",
  // naming who does), FAILED_PRECONDITION ("STATE_DIR_NOT_SHARED", "STORE_TOO_NEW"), or an error of
  // EtcdClient. Waits for etcd, not for another to end.
  static absl::StatusOr<std::unique_ptr<Store>> Open(Options options);
  // The next may lead at once.
  ~EtcdStore() override = default;

  uint64_t term() const override { return term_; }
  const std::string& cluster() const override { return cluster_; }
  void ObserveCommits(std::function<void(absl::Duration)> observe) override {
    observe_commit_ = std::move(observe);
  }
  absl::StatusOr<v1::Job> AddJob(Submission submission) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::optional<Request>> FindRequest(const std::string& request_id) const override;
  absl::Status Commit(const Change& change) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<bool> PassOverNumbers(uint64_t last) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status DeleteJob(uint64_t number) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::vector<StoredJob>> LoadJobs() const override;
  absl::StatusOr<std::vector<v1::JobEvent>> Events(uint64_t number, uint64_t after_revision,
                                                   int max) const override;
  absl::StatusOr<std::vector<v1::Checkpoint>> Checkpoints(uint64_t number) const override;
  absl::StatusOr<std::vector<Seat>> Seats() const override;
  absl::Status PutToken(const Token& token) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status DeleteToken(const std::string& id) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::vector<Token>> Tokens() const override;
  absl::Status Export(
      const std::function<absl::Status(const v1::BackupRecord&)>& take) const override;
  absl::Status Import(
      const std::function<absl::StatusOr<std::optional<v1::BackupRecord>>()>& next) override;

 private:
  class Writing;
  // Of one kind, without the prefix and the kind.
  using Values = absl::btree_map<std::string, std::string>;

  explicit EtcdStore(Options options) : options_(std::move(options)) {}

  absl::Status Lead();
  absl::Status LoadSeats();
  absl::Status SweepParts() ABSL_LOCKS_EXCLUDED(mu_);

  std::string Key(absl::string_view name) const;
  // What is stored under a key, or was at a revision (0: now); nullopt: nothing is.
  absl::StatusOr<std::optional<std::string>> Read(const std::string& name,
                                                  int64_t revision = 0) const;
  // All that is stored under keys that begin so.
  absl::StatusOr<Values> ReadAll(const std::string& prefix, int64_t revision = 0) const;
  // Names of the requests that made a job, also of one that is damaged.
  absl::StatusOr<std::vector<std::string>> RequestsOf(uint64_t number) const;
  absl::StatusOr<std::string> Whole(const std::string& name, absl::string_view stored,
                                    int64_t revision = 0) const;
  absl::Status ImportJob(const v1::BackupJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status GiveUp() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Write(const Writing& writing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for etcd for as long as this process leads. After an error nothing was written, or the
  // next call fails with STORE_LOST.
  absl::Status Transact(etcdserverpb::TxnRequest request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Lost() const;

  const Options options_;
  std::unique_ptr<EtcdLease> lease_;
  int64_t led_since_ = 0;  // revision in which our leader's key was made
  std::function<void(absl::Duration)> observe_commit_;
  uint64_t term_ = 0;
  std::string cluster_;

  absl::Mutex mu_;                                  // one write at a time
  uint64_t jobs_ ABSL_GUARDED_BY(mu_) = 0;          // number of the last
  uint64_t writings_ ABSL_GUARDED_BY(mu_) = 0;      // of values, in this term
  uint64_t transactions_ ABSL_GUARDED_BY(mu_) = 0;  // in this term
  int64_t written_in_ ABSL_GUARDED_BY(mu_) = 0;     // revision of meta/writing
  absl::btree_set<std::string> in_parts_
      ABSL_GUARDED_BY(mu_);  // names of which parts may lie there
  absl::btree_map<std::string, uint64_t> seats_ ABSL_GUARDED_BY(mu_);  // ordinals
};

}  // namespace muster
