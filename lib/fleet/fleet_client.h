// A member's side of MemberService.Attach: one stream to the coordinator, or to whichever of
// several leads, reopened with back-off for as long as it takes.
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

// What a member does. Called on the client's thread, never concurrently with itself.
class FleetMember {
 public:
  virtual ~FleetMember() = default;
  // The full list of jobs served now. Called about once per report interval and after every
  // ReportSoon(); by left() also on its caller's thread.
  virtual std::vector<v1::JobReport> Report() = 0;
  // Must not block: hands the work to the member's own threads. Older terms are already dropped.
  virtual void Handle(const v1::Directive& directive) = 0;
  // No coordinator for longer than `coordinator_grace`: the member drops its jobs. Called once per
  // outage.
  virtual void CoordinatorLost() = 0;
};

// Thread-safe.
class FleetClient {
 public:
  struct Options {
    CoordinatorTarget coordinator;
    v1::Hello hello;
    absl::Duration coordinator_grace = absl::Minutes(5);
    // Told once, on the client's thread, when the coordinator refuses this process for good: see
    // refusal(). The member has dropped its jobs then and nobody tries to attach any more.
    std::function<void()> refused;
    // The coordinator wants the process to end as on SIGTERM; told on the client's thread.
    std::function<void()> drained = nullptr;
    // What is told to who asks for this process's log; outlives the client. Null: nothing.
    const LogRing* log = nullptr;
    // Who answers TraceOrders; outlives the client. Null: nobody.
    TraceTeller* traces = nullptr;
  };
  // Starts its thread at once. `member` outlives the client.
  FleetClient(Options options, FleetMember* member);
  ~FleetClient();  // closes the stream and joins

  // Sends a report without waiting for the interval (a state changed).
  void ReportSoon();

  // Says with every report from now on that the member wants to end: the coordinator lets its jobs
  // go on without it, and releases it.
  void Leave();
  // After Leave(): the member serves no job, by the last report or, while there is no coordinator,
  // by itself.
  bool left() const;

  // Stops reconnecting, sends a last report and closes the stream in order, so that the coordinator
  // knows at once that the member left. Blocks up to `timeout`.
  void Detach(absl::Duration timeout);

  bool attached() const;

  // OK, or why no attempt to attach can succeed any more, with a reason: "REPLACED" (another
  // process has the name), "CLUSTER_CHANGED" (another coordinator, or another store),
  // "HELLO_INVALID", "NOT_YOUR_NAME" or "NOT_ALLOWED" (its certificate is another's). Any
  // other error is retried: the coordinator may be away, the name in use for a while, or an update
  // of all programs under way that has not come to the coordinator yet.
  absl::Status refusal() const;

 private:
  class Session;
  std::unique_ptr<Session> session_;
};

}  // namespace muster
