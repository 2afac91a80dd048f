// The store of one coordinator: one SQLite file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "services/coordinator/store/store.h"

struct sqlite3;

namespace muster {

// WAL with synchronous=FULL. A second opener is refused.
class SqliteStore final : public Store {
 public:
  static constexpr int kSchemaVersion = 4;
  static constexpr int kTokensSince = 4;  // there are none in a store of an older schema

  // Of the store in that file, which is only read; 0: not known.
  static int64_t SchemaIn(const std::string& path);

  // Makes or opens the file and raises the term by one. UNAVAILABLE (reason "STORE_LOCKED"):
  // another coordinator has it; FAILED_PRECONDITION ("STORE_TOO_NEW"): written by a newer Muster;
  // DATA_LOSS ("STORE_CORRUPT"): not a store or damaged, or Replace() has not ended and there is
  // none; PERMISSION_DENIED ("STORE_UNWRITABLE").
  static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& path);

  // Makes a store of what `fill` puts into an empty one, and only then gives up the one that is
  // there, if one is: it is kept beside it under another name. After an error, and after a death,
  // that is as it was; where none was, none is, and Open() says so. UNAVAILABLE (reason
  // "STORE_LOCKED"): a coordinator has it. The errors of Open() and of `fill`.
  static absl::Status Replace(const std::string& path,
                              const std::function<absl::Status(Store&)>& fill);
  ~SqliteStore() override;

  uint64_t term() const override { return term_; }
  const std::string& cluster() const override { return cluster_; }
  void ObserveCommits(std::function<void(absl::Duration)> observe) override {
    observe_commit_ = std::move(observe);
  }
  absl::StatusOr<v1::Job> AddJob(Submission submission) override;
  absl::StatusOr<std::optional<Request>> FindRequest(const std::string& request_id) const override;
  absl::Status Commit(const Change& change) override;
  absl::StatusOr<bool> PassOverNumbers(uint64_t last) override;
  absl::Status DeleteJob(uint64_t number) override;
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
  SqliteStore(sqlite3* database, int lock_file) : database_(database), lock_file_(lock_file) {}

  // The store closes the file of the lock.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> OpenLocked(const std::string& path,
                                                                 int lock_file);
  absl::Status Initialize(const std::string& path);
  // All that was written is in the one file then, and on the device.
  absl::Status Settle() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status TakeSeat(const Seat& seat) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ImportJob(const v1::BackupJob& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status InTransaction(const std::function<absl::Status()>& body)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  sqlite3* const database_;
  const int lock_file_;
  std::function<void(absl::Duration)> observe_commit_;
  uint64_t term_ = 0;
  std::string cluster_;
};

}  // namespace muster
