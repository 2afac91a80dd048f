// A store for one coordinator, in one SQLite file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "services/coordinator/store/store.h"

struct sqlite3;

namespace muster {

// Uses WAL mode with synchronous=FULL. A file lock keeps a second process from opening the store.
class SqliteStore final : public Store {
 public:
  static constexpr int kSchemaVersion = 4;
  static constexpr int kTokensSince = 4;  // older schemas have no tokens

  // Returns the schema version of the store in the file, or 0 if unknown. Only reads the file.
  static int64_t SchemaIn(const std::string& path);

  // Opens or creates the file and raises the term by one.
  // Returns UNAVAILABLE (reason "STORE_LOCKED") if another coordinator has it open.
  // Returns FAILED_PRECONDITION ("STORE_TOO_NEW") if a newer Muster wrote it.
  // Returns DATA_LOSS ("STORE_CORRUPT") if it is damaged or not a store, or if an unfinished
  // Replace() left no store.
  // Returns PERMISSION_DENIED ("STORE_UNWRITABLE") if it cannot be opened or written.
  static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& path);

  // Fills a new store with `fill`, then puts it in the place of the store in `path`, if there is
  // one. The old store is kept beside it under another name.
  //
  // An error of `fill`, or a crash while it runs, leaves the old store unchanged. If there was
  // none, there is still none, and Open() reports the unfinished restore. Open() also reports a
  // crash between the two renames, which leaves the old store under its other name. Returns
  // UNAVAILABLE (reason "STORE_LOCKED") if a coordinator has the store open, or an error of Open()
  // or `fill`.
  static absl::Status Replace(const std::string& path,
                              const std::function<absl::Status(Store&)>& fill);
  ~SqliteStore() override;

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

  // Takes ownership of `lock_file` and closes it with the store.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> OpenLocked(const std::string& path,
                                                                 int lock_file);
  absl::Status Initialize(const std::string& path);
  // Moves the write-ahead log into the database file and syncs it.
  absl::Status Settle() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status InTransaction(const std::function<absl::Status()>& body)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  sqlite3* const database_;
  const int lock_file_;
};

}  // namespace muster
