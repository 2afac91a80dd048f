// What must survive the coordinator, whatever keeps it: SqliteStore or EtcdStore.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/status/status.h"
#include "proto/muster/v1/access.pb.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "proto/muster/v1/store.pb.h"

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

// What a call has answered with OK survives kill -9 and power loss, and every call is all or
// nothing. One coordinator at a time has a store: every opening has a higher term than those before
// it. Thread-safe; calls wait for the disk or the network. Errors of every call: RESOURCE_EXHAUSTED
// (reason "STORE_FULL"), DATA_LOSS ("STORE_CORRUPT"), else INTERNAL ("STORE_FAILED").
// store_conformance.cc states these promises as tests, for every implementation.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  // Of this opening; does not change.
  virtual uint64_t term() const = 0;
  // Made with the store: who has it is the same cluster, wherever it runs.
  virtual const std::string& cluster() const = 0;

  // `observe` is told how long each write takes from now on. Before another thread has the store.
  virtual void ObserveCommits(std::function<void(absl::Duration)> observe) = 0;

  struct Submission {
    v1::Job record;  // without name and number
    JobOrigin origin;
    std::string request_id;   // "": none
    std::string fingerprint;  // of the request's spec
  };
  // Gives the job its number (never used twice) and name, and stores it with its first event, made
  // from the record's state, reason and message.
  virtual absl::StatusOr<v1::Job> AddJob(Submission submission) = 0;

  struct Request {
    std::string fingerprint;
    std::string job;  // id
  };
  virtual absl::StatusOr<std::optional<Request>> FindRequest(
      const std::string& request_id) const = 0;

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
  virtual absl::Status Commit(const Change& change) = 0;

  // No new job has a number up to this one. Whether one might have had; else nothing is written.
  virtual absl::StatusOr<bool> PassOverNumbers(uint64_t last) = 0;

  // The job with its events, plans, checkpoint records and request ids.
  virtual absl::Status DeleteJob(uint64_t number) = 0;

  // By number. A job that is damaged is among them.
  virtual absl::StatusOr<std::vector<StoredJob>> LoadJobs() const = 0;
  // The first events after a revision, at most so many.
  virtual absl::StatusOr<std::vector<v1::JobEvent>> Events(uint64_t number, uint64_t after_revision,
                                                           int max) const = 0;
  virtual absl::StatusOr<std::vector<v1::Checkpoint>> Checkpoints(
      uint64_t number) const = 0;  // by step
  virtual absl::StatusOr<std::vector<Seat>> Seats() const = 0;

  struct Token {
    v1::AccessToken record;
    std::string hash;  // of its secret
  };
  // New, or in the place of the one with its id.
  virtual absl::Status PutToken(const Token& token) = 0;
  virtual absl::Status DeleteToken(const std::string& id) = 0;
  virtual absl::StatusOr<std::vector<Token>> Tokens() const = 0;

  // All that is kept, as it is at one moment, but for the seats: the header (without time and
  // program), then jobs by number, then tokens. Other calls go on meanwhile. Stops at the first
  // error of `take`. Events, records of checkpoints, requests and tokens that are damaged are left
  // out here or by Import(), which the log says; a job that is damaged otherwise is so there too.
  virtual absl::Status Export(
      const std::function<absl::Status(const v1::BackupRecord&)>& take) const = 0;
  // Takes in what Export() gave, in its order, until `next` gives nullopt. The cluster is another
  // one then, terms are beyond the header's and this opening's, and new jobs have numbers beyond
  // the header's: who belongs to what was before cannot act. For a store that is closed after this.
  // FAILED_PRECONDITION (reason "STORE_NOT_EMPTY"): it has jobs or tokens.
  virtual absl::Status Import(
      const std::function<absl::StatusOr<std::optional<v1::BackupRecord>>()>& next) = 0;
  // Of the terms of two stores that one backup was put into, none is the other's.
  static constexpr uint64_t kTermsPassedOver = 1000;

 protected:
  static absl::Status StoreNotEmpty() {
    return WithReason(absl::FailedPreconditionError(
                          "the store has jobs or tokens already: --force gives them up for those "
                          "of the backup"),
                      "STORE_NOT_EMPTY");
  }
};

}  // namespace muster
