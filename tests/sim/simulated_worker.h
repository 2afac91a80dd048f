// A worker of a simulated fleet.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "proto/muster/v1/coordinator.pb.h"
#include "tests/sim/simulated_member.h"

namespace muster {

// Trains with the trajectory's gradients instead of a model's. Events replace the threads of
// PsExchange and WorkerJob; the transport is in-process.
class SimulatedWorker : public SimulatedMember {
 public:
  SimulatedWorker(SimulatedWorld* world, std::string name);
  ~SimulatedWorker() override;

  void CutLink() override;

 private:
  class Generation;

  void Begin(v1::Hello& hello) override;
  void End() override;
  std::vector<v1::JobReport> Reports() override;
  void Handle(const v1::Directive& directive) override;
  bool Turn() override;

  std::unique_ptr<Generation> generation_;  // of the job that it serves, or null
};

}  // namespace muster
