#include "services/coordinator/scheduling/job_plan.h"

#include <glog/logging.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/plan/chunk_placement.h"
#include "lib/plan/parameter_group.h"
#include "lib/plan/parameter_table.h"
#include "lib/plan/sum_tree.h"
#include "lib/transport/session/session.h"
#include "services/coordinator/job/recovery/replica_placement.h"

namespace muster {
namespace {

// Cuts the batch into leaves and gives each worker a node of them: one leaf, unless the job has
// logical workers.
void ShareBatch(const v1::JobSpec& spec, const std::vector<v1::Hello>& workers, v1::JobPlan& plan) {
  const int64_t batch = spec.data().batch_size(), logical = spec.resources().workers().logical();
  const int64_t count = std::ssize(workers), leaves = logical != 0 ? logical : count;
  CHECK(count <= leaves && leaves <= batch) << count << ", " << leaves << ", " << batch;
  const std::vector<SumNode> nodes = CutNode({.leaves = leaves}, count);
  for (int64_t rank = 0; rank < count; ++rank) {
    const BatchShare share = ShareOfNode(batch, leaves, nodes[rank]);
    v1::PlanWorker& worker = *plan.add_workers();
    worker.set_member(workers[rank].member());
    worker.set_host(workers[rank].host());
    worker.set_first_position(share.first);
    worker.set_samples(share.count);
  }
}

std::vector<v1::PlanShard> ShardsOfPs(const std::vector<v1::Hello>& ps) {
  std::vector<v1::PlanShard> shards;
  for (const v1::Hello& hello : ps) {
    for (int thread = 0; thread < hello.addresses_size(); ++thread) {
      v1::PlanShard& shard = shards.emplace_back();
      shard.set_member(hello.member());
      shard.set_thread(thread);
      shard.set_address(hello.addresses(thread));
      shard.set_host(hello.host());
    }
  }
  return shards;
}

// Adds the shards of ps to the plan, largest shares first. Returns the shares.
std::vector<double> AddShardsOfPs(const std::vector<v1::Hello>& ps, v1::JobPlan& plan) {
  std::vector<std::string> worker_hosts, shard_hosts;
  for (const v1::PlanWorker& worker : plan.workers()) worker_hosts.push_back(worker.host());
  std::vector<v1::PlanShard> shards = ShardsOfPs(ps);
  for (const v1::PlanShard& shard : shards) shard_hosts.push_back(shard.host());
  const std::vector<double> shares = ShardShares(worker_hosts, shard_hosts);
  std::vector<int> order(shards.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int i) { return shares[i]; });
  std::vector<double> ordered;
  for (const int i : order) {
    *plan.add_shards() = std::move(shards[i]);
    ordered.push_back(shares[i]);
  }
  return ordered;
}

std::vector<double> AddShardsOfWorkers(v1::JobPlan& plan) {
  for (const v1::PlanWorker& worker : plan.workers()) {
    v1::PlanShard& shard = *plan.add_shards();
    shard.set_member(worker.member());
    shard.set_host(worker.host());
  }
  return EqualShares(plan.workers_size());
}

void PlaceShards(const std::vector<v1::Hello>& ps, v1::JobPlan& plan) {
  const v1::SyncMode mode = plan.spec().sync().mode();
  const std::vector<double> shares =
      mode == v1::ALLREDUCE ? AddShardsOfWorkers(plan) : AddShardsOfPs(ps, plan);
  const v1::TrainingSpec& training = plan.spec().training();
  std::vector<bool> frozen;
  for (const v1::Parameter& parameter : plan.graph().parameters()) {
    frozen.push_back(TreatmentOf(training, parameter).frozen);
  }
  const std::vector<v1::PlanChunk> chunks = WithAveragedSlots(
      plan.spec(), CutAndPlaceChunks(plan.graph(), plan.spec().chunk_bytes(), shares, frozen,
                                     limits::kChunksMax / (1 + AveragedSlots(plan.spec()))));
  plan.mutable_chunks()->Assign(chunks.begin(), chunks.end());
}

}  // namespace

std::shared_ptr<const v1::JobPlan> MakePlan(PlanRequest request) {
  auto plan = std::make_shared<v1::JobPlan>();
  plan->set_job(JobIdOf(request.job.name()));
  plan->set_job_number(request.job.number());
  plan->set_generation(request.job.generation() + 1);
  plan->set_first_step(request.first_step);
  *plan->mutable_spec() = request.job.spec();
  *plan->mutable_graph() = std::move(request.graph);
  ShareBatch(plan->spec(), request.workers, *plan);
  if (request.carried != nullptr) {
    plan->set_carries(request.carried->generation());
    plan->mutable_shards()->Assign(request.shards.begin(), request.shards.end());
    *plan->mutable_chunks() = request.carried->chunks();
  } else {
    PlaceShards(request.ps, *plan);
  }
  if (plan->spec().resources().ps_replication() > 1 && !request.without_new_replicas) {
    PlaceReplicas(request.ps, *plan);
  }
  plan->set_evaluate_first(request.evaluate_first);
  *plan->mutable_left_out_batches() = request.job.recovery().left_out_batches();
  plan->set_session_token(SessionToken::Random().ToBytes());
  plan->set_restore(request.restore);
  return plan;
}

v1::JobPlan WarmUpPlan(const v1::JobPlan& running, const std::vector<v1::Hello>& workers) {
  v1::JobPlan plan = running;
  plan.clear_session_token();
  plan.clear_restore();
  plan.clear_workers();
  ShareBatch(plan.spec(), workers, plan);
  return plan;
}

}  // namespace muster
