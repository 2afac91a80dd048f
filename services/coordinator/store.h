// What must survive the coordinator: one SQLite file.
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
#include "absl/types/span.h"
#include "proto/muster/v1/access.pb.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"

struct sqlite3;

namespace muster {

// Where a job's parameters come from when it has no checkpoint of its own.
struct JobOrigin {
  std::string restore;  // as JobPlan.restore; "": initial values
  int64_t first_step = 0;
  // The model as it was read when the job was created; no nodes: to be built from the spec.
  v1::Graph graph = {};
};

struct StoredJob {
  v1::Job record;
  JobOrigin origin;
  // Of the record's generation; null: it was never scheduled, or it has ended.
  std::shared_ptr<const v1::JobPlan> plan;
  absl::Status damage;  // what of it cannot be read; the record has its number at least
};

// WAL with synchronous=FULL: what a call has answered survives kill -9 and power loss, and every
// call is all or nothing. Thread-safe; calls wait for the disk. Errors: RESOURCE_EXHAUSTED (disk
// full), DATA_LOSS (damaged file), else INTERNAL.
class Store {
 public:
  static constexpr int kSchemaVersion = 4;

  // Makes or opens the file and raises the term by one. UNAVAILABLE (reason "STORE_LOCKED"):
  // another coordinator has it; FAILED_PRECONDITION ("STORE_TOO_NEW"): written by a newer Muster;
  // DATA_LOSS ("STORE_CORRUPT"): not a store or damaged; PERMISSION_DENIED ("STORE_UNWRITABLE").
  // `observe_commit` is told how long each transaction took.
  static absl::StatusOr<std::unique_ptr<Store>> Open(
      const std::string& path, std::function<void(absl::Duration)> observe_commit = nullptr);
  ~Store();

  uint64_t term() const { return term_; }
  // Made with the file: who has it is the same cluster, wherever it runs.
  const std::string& cluster() const { return cluster_; }

  struct Submission {
    v1::Job record;  // without name and number
    JobOrigin origin;
    std::string request_id;   // "": none
    std::string fingerprint;  // of the request's spec
  };
  // Gives the job its number (never used twice) and name, and stores it with its first event, made
  // from the record's state, reason and message.
  absl::StatusOr<v1::Job> AddJob(Submission submission);

  struct Request {
    std::string fingerprint;
    std::string job;  // id
  };
  absl::StatusOr<std::optional<Request>> FindRequest(const std::string& request_id) const;

  // The newest process of a name; see Hello.ordinal.
  struct Seat {
    std::string member;
    uint64_t ordinal = 0;
  };
  struct Change {
    const v1::Job* record = nullptr;  // null: only a seat is taken
    absl::Span<const v1::JobEvent> events;
    const v1::JobPlan* plan = nullptr;              // a new generation
    const v1::Checkpoint* checkpoint = nullptr;     // committed now
    absl::Span<const int64_t> checkpoints_removed;  // steps
    const Seat* seat = nullptr;
  };
  // Keeps the job's newest limits::kJobEventsKeptMax events and the plan of its last generation; of
  // a job that has ended (its record has an end time) no plan.
  absl::Status Commit(const Change& change);

  // The job with its events, plans, checkpoint records and request ids.
  absl::Status DeleteJob(uint64_t number);

  // By number. A job that is damaged is among them.
  absl::StatusOr<std::vector<StoredJob>> LoadJobs() const;
  // The first events after a revision, at most so many.
  absl::StatusOr<std::vector<v1::JobEvent>> Events(uint64_t number, uint64_t after_revision,
                                                   int max) const;
  absl::StatusOr<std::vector<v1::Checkpoint>> Checkpoints(uint64_t number) const;  // by step
  absl::StatusOr<std::vector<Seat>> Seats() const;

  struct Token {
    v1::AccessToken record;
    std::string hash;  // of its secret
  };
  // New, or in the place of the one with its id.
  absl::Status PutToken(const Token& token);
  absl::Status DeleteToken(const std::string& id);
  absl::StatusOr<std::vector<Token>> Tokens() const;

 private:
  Store(sqlite3* database, int lock_file, std::function<void(absl::Duration)> observe_commit);

  absl::Status Initialize(const std::string& path);
  absl::Status TakeSeat(const Seat& seat) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status InTransaction(const std::function<absl::Status()>& body)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  sqlite3* const database_;
  const int lock_file_;
  const std::function<void(absl::Duration)> observe_commit_;
  uint64_t term_ = 0;
  std::string cluster_;
};

}  // namespace muster
