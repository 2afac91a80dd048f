// A store for several coordinators: keys in etcd that only the leader writes.
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

// The leader has the key "leader", under a lease. Every etcd transaction that writes requires the
// create revision of that key. If another coordinator has the key, etcd writes nothing, the caller
// gets FAILED_PRECONDITION (reason "STORE_LOST"), and `lost` is called.
//
// If no server answers in time, the outcome of a transaction is unknown, and a delayed attempt may
// arrive after its retry. So each transaction also requires the revision of "meta/writing" that the
// previous one left, and puts its own number there. A transaction out of its turn writes nothing,
// and the key tells which transaction was last. A transaction that only deletes puts no number,
// because etcd accepts deletions even when its space is used up; repeating it before the next write
// is harmless.
//
//   meta/schema, meta/term, meta/jobs                 numbers as text; jobs: the last job
//   meta/cluster                                      UUID of the cluster
//   meta/folder                                       id of the state folder of this store
//   meta/restoring                                    present while a restore is unfinished
//   meta/writing                                      TERM/NUMBER of the last transaction with puts
//   leader                                            the leader's address
//   job/N, origin/N, graph/N, plan/N                  N, STEP, REVISION: 20 digits
//   event/N/REVISION                                  StoredEvents; REVISION of the last one
//   checkpoint/N/STEP
//   request/HEX, seat/MEMBER, token/ID                HEX: the bytes of the request id
//   part/KEY/WRITING/I                                part I of a long value of KEY
//
// Every key except "leader" stores 'v' and the value itself, or 'p', the writing and the number of
// parts. Parts are written before the transaction that names them. Open() removes parts that a
// crash left.
class EtcdStore final : public Store {
 public:
  static constexpr int kSchemaVersion = 1;
  static constexpr int64_t kInlineBytesMax = 128 << 10;  // etcd takes 1.5 MB in one transaction
  static constexpr int64_t kPartBytesMax = 512 << 10;

  struct Options {
    EtcdClient* client = nullptr;     // must outlive the store
    std::string prefix = "/muster/";  // of all keys
    std::string address;              // of this coordinator, for callers of a standby
    absl::Duration lease = absl::Seconds(5);
    // Id of the state folder. Coordinators of one store must have the same. "": any.
    std::string folder;
    // Deletes all jobs and tokens. The store is unusable until Import() succeeds.
    bool give_up = false;
    bool adopt_folder = false;  // `folder` replaces the folder id in the store
    // Called when this process no longer leads; it must exit. May be called more than once, on any
    // thread.
    std::function<void(const absl::Status&)> lost = [](const absl::Status&) {};
  };
  // Becomes the leader, with a higher term. Returns
  // - UNAVAILABLE (reason "STORE_LOCKED") with the leader's address if there is a leader,
  // - FAILED_PRECONDITION if the store belongs to another state folder ("STATE_DIR_NOT_SHARED") or
  //   a newer Muster wrote it ("STORE_TOO_NEW"),
  // - DATA_LOSS ("STORE_CORRUPT") after an unfinished restore, or
  // - an error of EtcdClient.
  // Blocks for etcd, but does not wait until another leader ends.
  static absl::StatusOr<std::unique_ptr<Store>> Open(Options options);
  // Ends the lease, so that another coordinator can lead at once.
  ~EtcdStore() override = default;

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
  // All values of one kind, by name without the prefix and the kind.
  using Values = absl::btree_map<std::string, std::string>;

  explicit EtcdStore(Options options) : options_(std::move(options)) {}

  absl::Status Lead();
  absl::Status LoadSeats();
  absl::Status SweepParts() ABSL_LOCKS_EXCLUDED(mu_);

  std::string Key(absl::string_view name) const;
  // Returns the value of a key, at a revision (0: now); nullopt if there is none.
  absl::StatusOr<std::optional<std::string>> Read(const std::string& name,
                                                  int64_t revision = 0) const;
  // Returns all values with keys that begin with `prefix`.
  absl::StatusOr<Values> ReadAll(const std::string& prefix, int64_t revision = 0) const;
  // Returns the names of the requests that created a job. Works for damaged jobs, too.
  absl::StatusOr<std::vector<std::string>> RequestsOf(uint64_t number) const;
  absl::StatusOr<std::string> Whole(const std::string& name, absl::string_view stored,
                                    int64_t revision = 0) const;
  static Writing WritingOf(const v1::BackupJob& job, Writing writing);
  absl::Status ImportJob(const v1::BackupJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status GiveUp() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Write(const Writing& writing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Blocks until etcd answers or this process no longer leads. After an error either nothing was
  // written, or the next call fails with STORE_LOST.
  absl::Status Transact(etcdserverpb::TxnRequest request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Lost() const;

  const Options options_;
  std::unique_ptr<EtcdLease> lease_;
  int64_t led_since_ = 0;  // revision in which our leader key was created

  absl::Mutex mu_;                                  // serializes writes
  uint64_t jobs_ ABSL_GUARDED_BY(mu_) = 0;          // number of the last job
  uint64_t writings_ ABSL_GUARDED_BY(mu_) = 0;      // values written in this term
  uint64_t transactions_ ABSL_GUARDED_BY(mu_) = 0;  // in this term
  int64_t written_in_ ABSL_GUARDED_BY(mu_) = 0;     // the revision of meta/writing
  absl::btree_set<std::string> in_parts_
      ABSL_GUARDED_BY(mu_);  // Names that may have parts in etcd.
  absl::btree_map<std::string, uint64_t> seats_ ABSL_GUARDED_BY(mu_);  // ordinals by member
};

}  // namespace muster
