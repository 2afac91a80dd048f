#include "services/coordinator/job_plan.h"

#include <glog/logging.h>
#include <unistd.h>

#include <utility>

#include "lib/cluster/parameter_table.h"
#include "lib/cluster/resource_name.h"

namespace muster {
namespace {

std::string SessionToken() {
  std::string token(16, '\0');
  PCHECK(getentropy(token.data(), token.size()) == 0);
  return token;
}

void ShareBatch(int64_t batch_size, const std::vector<std::string>& workers, v1::JobPlan& plan) {
  const int64_t count = std::ssize(workers);
  CHECK_LE(count, batch_size);
  int64_t position = 0;
  for (int64_t rank = 0; rank < count; ++rank) {
    v1::PlanWorker& worker = *plan.add_workers();
    worker.set_member(workers[rank]);
    worker.set_first_position(position);
    worker.set_samples(batch_size / count + (rank < batch_size % count ? 1 : 0));
    position += worker.samples();
  }
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
  ShareBatch(plan->spec().data().batch_size(), request.workers, *plan);
  for (const v1::Hello& ps : request.ps) {
    for (int thread = 0; thread < ps.addresses_size(); ++thread) {
      v1::PlanShard& shard = *plan->add_shards();
      shard.set_member(ps.member());
      shard.set_thread(thread);
      shard.set_address(ps.addresses(thread));
    }
  }
  std::vector<v1::PlanChunk> chunks = CutIntoChunks(plan->graph(), plan->spec().chunk_bytes());
  PlaceChunks(chunks, plan->shards_size());
  for (v1::PlanChunk& chunk : chunks) *plan->add_chunks() = std::move(chunk);
  plan->set_session_token(SessionToken());
  plan->set_restore(request.restore);
  return plan;
}

}  // namespace muster
