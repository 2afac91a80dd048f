// A member of a simulated fleet: its process, which comes and goes, and its stream to the
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

// What members share.
class SimulatedWorld {
 public:
  virtual ~SimulatedWorld() = default;

  virtual SimulatedTime& time() = 0;
  virtual InProcessNetwork& network() = 0;
  virtual Trajectory& trajectory() = 0;
  // What a worker takes for a step of its own, at most.
  virtual absl::Duration step_max() const = 0;

  // The coordinator does that and comes to rest, and what it then has to say goes on its way.
  // False: there is no coordinator.
  virtual bool AtCoordinator(const std::function<void(Coordinator&)>& what) = 0;
  // Its number, counted over its starts.
  virtual int coordinator_life() const = 0;
  // Streams of shards that are under way; they end with the coordinator.
  virtual std::set<std::shared_ptr<ShardUpload>>& uploads() = 0;

  // Something was sent over the data plane: everybody looks soon.
  virtual void Stir() = 0;
  // A worker has finished a step.
  virtual void Advanced() = 0;
  // A ps of this plan is halted and holds what its report says.
  virtual void Halted(const std::string& ps, const v1::JobPlan& plan,
                      const v1::JobReport& report) = 0;
  // A process has come to its end.
  virtual void Ended(const std::string& member) = 0;
  virtual void Log(const std::string& what) = 0;
  // What must never be.
  virtual void Violated(const std::string& what) = 0;
};

// As lib/fleet/fleet_client, without threads and gRPC. A process is told apart from the one before
// it by its life; what was to happen in a process that is gone does not happen.
class SimulatedMember {
 public:
  SimulatedMember(SimulatedWorld* world, std::string name, v1::Role role);
  SimulatedMember(const SimulatedMember&) = delete;
  SimulatedMember& operator=(const SimulatedMember&) = delete;
  virtual ~SimulatedMember() = default;

  const std::string& name() const { return name_; }
  bool running() const { return running_; }

  // ---- what befalls it
  void StartProcess();
  // kill -9. The coordinator hears of it soon, or, where its host is gone as well, by its lease.
  void Kill(bool with_host);
  // It does nothing for so long; what is sent to it waits.
  void StandStill(absl::Duration time);
  // The stream to the coordinator breaks; each side notices when it does.
  void BreakStream();
  // Of those to others of its job, if it has any.
  virtual void CutLink() {}
  // SIGTERM: says that it leaves, and ends once it serves nothing.
  void Leave();

  // ---- the world's
  // Takes what the coordinator has for it.
  void TakeDirectives();
  void CoordinatorDied();
  // A turn of its data plane; whether anything had come.
  bool LookAtLinks();

 protected:
  // The process has begun, or has come to its end: all that it held is gone.
  virtual void Begin(v1::Hello& hello) = 0;
  virtual void End() = 0;
  virtual std::vector<v1::JobReport> Reports() = 0;
  virtual void Handle(const v1::Directive& directive) = 0;
  virtual bool Turn() = 0;

  SimulatedWorld& world() const { return *world_; }
  SimulatedTime& time() const { return world_->time(); }
  bool stands_still() const { return time().now() < wakes_; }
  // In this process, if it still lives and as soon as it does not stand still.
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
              Coordinator::Departure departure);
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
