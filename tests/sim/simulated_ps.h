// A parameter server of a simulated fleet.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/shard/chunks/memory_budget.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/ps/ps_metrics.h"
#include "services/ps/shard_loop.h"
#include "tests/sim/simulated_member.h"

namespace muster {

// The data plane is the production ShardLoop on an in-process transport. Events replace the threads
// of ServedJob. Checkpoints are read and written by direct calls to the coordinator.
class SimulatedPs : public SimulatedMember {
 public:
  // `metrics` outlives the ps.
  SimulatedPs(SimulatedWorld* world, std::string name, PsMetrics* metrics);
  ~SimulatedPs() override;

 private:
  class Service;

  void Begin(v1::Hello& hello) override;
  void End() override;
  std::vector<v1::JobReport> Reports() override;
  void Handle(const v1::Directive& directive) override;
  bool Turn() override;

  void Prepare(const v1::JobPlan& plan);
  void Release(uint32_t generation);

  PsMetrics* const metrics_;
  ShardCounts counts_;
  MemoryBudget budget_{int64_t{1} << 30};
  std::unique_ptr<Service> service_;               // of the present generation, or null
  std::vector<std::unique_ptr<Service>> leaving_;  // released, and still using memory
  std::unique_ptr<ShardLoop> loop_;                // null: no process is running
};

}  // namespace muster
