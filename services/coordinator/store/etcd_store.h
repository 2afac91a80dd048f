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
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "services/coordinator/store/etcd_client.h"
#include "services/coordinator/store/etcd_values.h"
#include "services/coordinator/store/store.h"

namespace muster {

// The names of EtcdValues that this store uses:
//
//   meta/schema, meta/jobs             numbers as text; jobs: the last job.
//   meta/cluster                       UUID of the cluster.
//   meta/folder                        id of the state folder of this store.
//   meta/restoring                     present while a restore is unfinished.
//   job/N, origin/N, graph/N, plan/N   N, STEP, REVISION: 20 digits.
//   event/N/REVISION                   StoredEvents; REVISION of the last one.
//   checkpoint/N/STEP
//   request/HEX                        HEX: the bytes of the request id.
//   seat/MEMBER, token/ID
class EtcdStore final : public Store {
 public:
  static constexpr int kSchemaVersion = 1;

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
  absl::Status PutToken(const Token& token) override;
  absl::Status DeleteToken(const std::string& id) override;
  absl::StatusOr<std::vector<Token>> Tokens() const override;
  absl::Status Export(
      const std::function<absl::Status(const v1::BackupRecord&)>& take) const override;
  absl::Status Import(
      const std::function<absl::StatusOr<std::optional<v1::BackupRecord>>()>& next) override;

 private:
  explicit EtcdStore(Options options) : options_(std::move(options)) {}

  absl::Status Lead() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status GiveUp();
  absl::Status LoadSeats() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the names of the requests that created a job. Works for damaged jobs, too.
  absl::StatusOr<std::vector<std::string>> RequestsOf(uint64_t number) const;
  absl::Status ImportJob(const v1::BackupJob& job);

  const Options options_;
  std::unique_ptr<EtcdValues> values_;

  absl::Mutex mu_;                          // serializes changes of jobs and seats
  uint64_t jobs_ ABSL_GUARDED_BY(mu_) = 0;  // number of the last job
  absl::btree_map<std::string, uint64_t> seats_ ABSL_GUARDED_BY(mu_);  // ordinals by member
};

}  // namespace muster
