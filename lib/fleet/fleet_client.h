// A member's side of MemberService.Attach: one stream to the coordinator that leads. The client
// reopens it with back-off, without limit.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/fleet/channel.h"
#include "lib/fleet/log_ring.h"
#include "lib/fleet/trace_teller.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// The member's side of the conversation. Called on the client's threads, never concurrently.
class FleetMember {
 public:
  virtual ~FleetMember() = default;
  // Returns the full list of jobs served now. Called about once per report interval and after every
  // ReportSoon(). left() calls it on its caller's thread as well.
  virtual std::vector<v1::JobReport> Report() = 0;
  // Passes `directive` to the member's own threads. Must not block. Directives of older terms are
  // already dropped.
  virtual void Handle(const v1::Directive& directive) = 0;
  // Drops the member's jobs. Called once per outage: when no coordinator was attached for longer
  // than `coordinator_grace`, or when the coordinator refuses this process for good.
  virtual void CoordinatorLost() = 0;
};

// Thread-safe.
class FleetClient {
 public:
  struct Options {
    CoordinatorTarget coordinator;
    v1::Hello hello;
    absl::Duration coordinator_grace = absl::Minutes(5);
    // Called once, on the client's thread, when the coordinator refuses this process for good: see
    // refusal(). By then the member has dropped its jobs and the client does not attach any more.
    std::function<void()> refused;
    // Called on one of the client's threads when the coordinator asks the process to end as on
    // SIGTERM.
    std::function<void()> drained = nullptr;
    // Answers requests for this process's log. Outlives the client. Null: answers are empty.
    const LogRing* log = nullptr;
    // Answers TraceOrders. Outlives the client. Null: they are ignored.
    TraceTeller* traces = nullptr;
  };
  // Starts its thread at once. `member` outlives the client.
  FleetClient(Options options, FleetMember* member);
  ~FleetClient();  // closes the stream and joins

  // Sends a report at once, without waiting for the interval. Call it when a state changed.
  void ReportSoon();

  // Makes every later report say that the member wants to leave. The coordinator then lets its jobs
  // continue without it, and releases it.
  void Leave();
  // Returns true after Leave() if the member serves no job: by its last report or, while no
  // coordinator is attached, by its present state.
  bool left() const;

  // Stops reconnecting, sends a last report and closes the stream in order, so that the coordinator
  // learns at once that the member left. Blocks for up to `timeout`.
  void Detach(absl::Duration timeout);

  bool attached() const;

  // Returns OK, or the reason why no attempt to attach can succeed any more:
  // - "REPLACED": another process has the name.
  // - "CLUSTER_CHANGED": another coordinator, or another store.
  // - "HELLO_INVALID".
  // - "NOT_YOUR_NAME" or "NOT_ALLOWED", before the client was attached for the first time: the
  //   certificate belongs to another identity.
  //
  // The client retries after any other error. The coordinator may be away, the name may be in use
  // for a while, or the coordinator may not have been updated yet.
  absl::Status refusal() const;

 private:
  class Session;
  std::unique_ptr<Session> session_;
};

}  // namespace muster
