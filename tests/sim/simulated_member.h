// A member of a simulated fleet: its process, which starts and dies, and its stream to the
// coordinator.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/checkpoints/checkpoint_round.h"
#include "services/coordinator/coordinator.h"
#include "services/coordinator/membership/attachment.h"
#include "tests/sim/simulated_time.h"
#include "tests/sim/trajectory.h"

namespace muster {

// Everything that members share.
class SimulatedWorld {
 public:
  virtual ~SimulatedWorld() = default;

  virtual SimulatedTime& time() = 0;
  virtual InProcessNetwork& network() = 0;
  virtual Trajectory& trajectory() = 0;
  // The longest time that a worker computes for one step.
  virtual absl::Duration step_max() const = 0;

  // Runs `what` on the coordinator and lets the coordinator settle. Then every running member takes
  // its directives, which reach it in later events.
  // Returns false if no coordinator is running.
  virtual bool AtCoordinator(const std::function<void(Coordinator&)>& what) = 0;
  // The number of the coordinator's life, counted over its starts.
  virtual int coordinator_life() const = 0;
  // Shard uploads in flight; they end with the coordinator.
  virtual std::set<std::shared_ptr<ShardUpload>>& uploads() = 0;

  // A message was sent over the data plane: every member checks its links soon.
  virtual void Stir() = 0;
  // A worker has finished a step.
  virtual void Advanced() = 0;
  // A ps of this plan has halted and holds what its report says.
  virtual void Halted(const std::string& ps, const v1::JobPlan& plan,
                      const v1::JobReport& report) = 0;
  // A member's process has ended.
  virtual void Ended(const std::string& member) = 0;
  virtual void Log(const std::string& what) = 0;
  // Records the violation of an invariant.
  virtual void Violated(const std::string& what) = 0;
};

// Models lib/fleet/fleet_client without threads and gRPC. A life number identifies each process of
// a member. Events of a process that has ended do nothing.
class SimulatedMember {
 public:
  SimulatedMember(SimulatedWorld* world, std::string name, v1::Role role);
  SimulatedMember(const SimulatedMember&) = delete;
  SimulatedMember& operator=(const SimulatedMember&) = delete;
  virtual ~SimulatedMember() = default;

  const std::string& name() const { return name_; }
  bool running() const { return running_; }

  // ---- faults
  void StartProcess();
  // kill -9. The coordinator notices soon, or by the lease if the host is gone as well.
  void Kill(bool with_host);
  // The process does nothing for `time`; messages to it wait.
  void StandStill(absl::Duration time);
  // Breaks the stream to the coordinator; each side notices in its own time.
  void BreakStream();
  // Cuts one of its links to other members of its job, if it has any.
  virtual void CutLink() {}
  // SIGTERM: reports that it leaves, and exits when it serves no job.
  void Leave();

  // ---- called by the world
  // Takes the directives that the coordinator has for this member.
  void TakeDirectives();
  void CoordinatorDied();
  // Runs a turn of the data plane. Returns whether any message arrived.
  bool LookAtLinks();

 protected:
  // Called when the process has started (Begin), and when it has ended and lost its state (End).
  virtual void Begin(v1::Hello& hello) = 0;
  virtual void End() = 0;
  virtual std::vector<v1::JobReport> Reports() = 0;
  virtual void Handle(const v1::Directive& directive) = 0;
  virtual bool Turn() = 0;

  SimulatedWorld& world() const { return *world_; }
  SimulatedTime& time() const { return world_->time(); }
  bool stands_still() const { return time().now() < wakes_; }
  // Runs `what` after `delay` if this process still lives, and not while it is paused.
  void Later(absl::Duration delay, std::function<void()> what);
  void ReportSoon();

 private:
  struct Stream {
    std::shared_ptr<Attachment> attachment;
    int coordinator_life = 0;
    bool broken = false;
    absl::Time report_arrives = absl::InfinitePast();
    absl::Time directive_arrives = absl::InfinitePast();
  };

  void Attach();
  void Detach(const std::shared_ptr<Stream>& stream, absl::Duration delay,
              Fleet::Departure departure);
  void LoseStream();
  void ReportAgain();
  void SendReport();
  void Obey(const v1::Directive& directive);
  void Exit();

  SimulatedWorld* const world_;
  const std::string name_;
  const v1::Role role_;
  v1::Hello hello_;
  int life_ = 0;
  bool running_ = false;
  absl::Time wakes_ = absl::InfinitePast();
  bool leaving_ = false;
  bool report_due_ = false;
  absl::Duration backoff_;
  std::shared_ptr<Stream> stream_;  // null: not attached
};

}  // namespace muster
