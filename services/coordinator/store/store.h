// The durable state of the coordinator: an interface that SqliteStore and EtcdStore implement.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/muster/v1/access.pb.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "proto/muster/v1/store.pb.h"

namespace muster {

// The origin of a job's parameters until it has a checkpoint of its own.
struct JobOrigin {
  std::string restore;  // as JobPlan.restore; "" for initial values
  int64_t first_step = 0;
  // The model as read when the job was created. Without nodes, the model is built from the spec.
  v1::Graph graph = {};
};

struct StoredJob {
  v1::Job record;
  JobOrigin origin;
  // The plan of the record's generation. Null if the job was never scheduled or has ended.
  std::shared_ptr<const v1::JobPlan> plan;
  absl::Status damage;  // The part that cannot be read, if any. `record` has its number even then.
};

// Jobs, events, plans, checkpoint records, members' ordinals and access tokens. A write that
// returned OK survives kill -9 and power loss. Every write is all or nothing. One coordinator at a
// time uses a store. Each opening gets a higher term than all before it.
//
// Thread-safe. Blocks for the disk or the network. Every call may return RESOURCE_EXHAUSTED (reason
// "STORE_FULL") if there is no space, DATA_LOSS ("STORE_CORRUPT") if the data are damaged, or
// INTERNAL ("STORE_FAILED"). store_conformance.cc tests this contract for every implementation.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  // The term of this opening. It does not change.
  uint64_t term() const { return term_; }
  // A UUID created with the store. Processes that see the same UUID belong to the same cluster.
  const std::string& cluster() const { return cluster_; }

  // Calls `observe` with the duration of every later write. Requires: no other thread uses the
  // store yet.
  void ObserveCommits(std::function<void(absl::Duration)> observe) {
    observe_commit_ = std::move(observe);
  }

  struct Submission {
    v1::Job record;  // without name and number
    JobOrigin origin;
    std::string request_id;   // "": none
    std::string fingerprint;  // of the request's spec
  };
  // Assigns the job a name and a number that is never reused. Stores the job with its first event,
  // which has the record's state, reason and message.
  virtual absl::StatusOr<v1::Job> AddJob(Submission submission) = 0;

  struct Request {
    std::string fingerprint;
    std::string job;  // id
  };
  virtual absl::StatusOr<std::optional<Request>> FindRequest(
      const std::string& request_id) const = 0;

  // The newest process with a member's name; see Hello.ordinal.
  struct Seat {
    std::string member;
    uint64_t ordinal = 0;
  };
  struct Change {
    const v1::Job* record = nullptr;  // null: the change only has a seat
    absl::Span<const v1::JobEvent> events;
    const v1::JobPlan* plan = nullptr;              // a new generation, or null
    const v1::Checkpoint* checkpoint = nullptr;     // newly committed, or null
    absl::Span<const int64_t> checkpoints_removed;  // steps
    const Seat* seat = nullptr;
  };
  // Stores one change. Keeps the newest limits::kJobEventsKeptMax events of the job and the plan of
  // its last generation. Deletes the plan of a job that has ended (its record has an end time).
  virtual absl::Status Commit(const Change& change) = 0;

  // Ensures that new jobs get numbers above `last`. Returns true if the counter had to be raised.
  // Writes nothing otherwise.
  virtual absl::StatusOr<bool> PassOverNumbers(uint64_t last) = 0;

  // Deletes the job with its events, plans, checkpoint records and request ids.
  virtual absl::Status DeleteJob(uint64_t number) = 0;

  // Returns all jobs by number, including damaged ones.
  virtual absl::StatusOr<std::vector<StoredJob>> LoadJobs() const = 0;
  // Returns the first events after a revision, at most `max`.
  virtual absl::StatusOr<std::vector<v1::JobEvent>> Events(uint64_t number, uint64_t after_revision,
                                                           int max) const = 0;
  virtual absl::StatusOr<std::vector<v1::Checkpoint>> Checkpoints(
      uint64_t number) const = 0;  // by step
  virtual absl::StatusOr<std::vector<Seat>> Seats() const = 0;

  struct Token {
    v1::AccessToken record;
    std::string hash;  // of its secret
  };
  // Adds the token, or replaces the token with the same id.
  virtual absl::Status PutToken(const Token& token) = 0;
  virtual absl::Status DeleteToken(const std::string& id) = 0;
  virtual absl::StatusOr<std::vector<Token>> Tokens() const = 0;

  // Passes a consistent snapshot of the store to `take`, without the seats: the header (without
  // time and program), then jobs by number, then tokens. Other calls may run meanwhile. Stops at
  // the first error of `take`.
  //
  // Damaged events, checkpoint records, requests and tokens are logged and left out, here or by
  // Import(). A job that is damaged in another way is exported as it is and stays damaged.
  virtual absl::Status Export(
      const std::function<absl::Status(const v1::BackupRecord&)>& take) const = 0;
  // Imports what Export() produced, in the same order, until `next` returns nullopt. Afterwards the
  // store has a new cluster id, and terms above the header's term and this opening's term. New jobs
  // get numbers above the header's. So processes of the old cluster cannot act on this store. The
  // store must be closed and opened again before any other use.
  // Returns FAILED_PRECONDITION (reason "STORE_NOT_EMPTY") if the store has jobs or tokens.
  virtual absl::Status Import(
      const std::function<absl::StatusOr<std::optional<v1::BackupRecord>>()>& next) = 0;
  // Import() skips this many terms. The store that was backed up may still run, and each opening
  // raises its term by one. Its terms stay below those of this store for its next 1000 openings.
  static constexpr uint64_t kTermsPassedOver = 1000;

 protected:
  uint64_t term_ = 0;
  std::string cluster_;
  std::function<void(absl::Duration)> observe_commit_;  // null: nothing observes
};

}  // namespace muster
