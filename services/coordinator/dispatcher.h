// Decides which waiting job starts now and on which members, draws up its plan and starts it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "lib/graph/zoo/zoo.h"
#include "services/coordinator/fleet.h"
#include "services/coordinator/job_registry.h"
#include "services/coordinator/scheduler.h"

namespace muster {

// Thread-safe. Plans take their time (a model is built, 100,000 chunks are placed), so one thread
// of the dispatcher's own makes them, outside of the registry's turns; meanwhile their members
// count as taken. A job that was changed in between (cancelled, suspended) or lost one of its
// members is not started: it waits for the next Dispatch(), as if nothing had been planned.
class Dispatcher {
 public:
  using ModelBuilder = std::function<absl::StatusOr<v1::Graph>(const v1::ModelSpec&)>;
  // Both outlive the dispatcher.
  Dispatcher(JobRegistry* registry, Fleet* fleet, ModelBuilder build_model = BuildModel);
  // Finishes the plan that is being made; drops those that wait.
  ~Dispatcher();

  // Gives waiting jobs the members that are free. Call it from one thread, several times a second.
  void Dispatch() ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until what was dispatched has been started or dropped.
  void AwaitIdle() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A job that has been given members.
  struct Start {
    uint64_t number = 0;
    uint64_t revision = 0;           // of the job: it has not been changed since
    std::vector<v1::Hello> workers;  // by rank
    std::vector<v1::Hello> ps;       // in plan order
  };
  using Starts = absl::btree_map<uint64_t, std::shared_ptr<const Start>>;  // by job number

  Starts starting() const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<WaitingJob> WaitingJobs(const JobRegistry::Turn& turn, const Starts& starting) const;
  FreeMembers FindFreeMembers(const JobRegistry::Turn& turn, const Starts& starting,
                              const absl::btree_map<std::string, AttachedMember>& members) const;

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Null: the job was changed or deleted meanwhile.
  JobRegistry::Entry* FindUnchanged(JobRegistry::Turn& turn, const Start& start) const;
  void Carry(const Start& start);
  absl::StatusOr<std::shared_ptr<const v1::JobPlan>> Prepare(
      const Start& start, const v1::Job& record, const JobOrigin& origin,
      std::shared_ptr<const v1::Graph> graph);
  bool AllAttached(const Start& start) const;

  JobRegistry* const registry_;
  Fleet* const fleet_;
  const ModelBuilder build_model_;
  mutable absl::Mutex mu_;
  Starts starting_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<const Start>> queue_ ABSL_GUARDED_BY(mu_);  // of starting_, to be done
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace muster
