#include "lib/shard/testing/test_plan.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "lib/plan/chunk_placement.h"
#include "lib/plan/parameter_table.h"

namespace muster {

v1::Optimizer TestPlanOptions::PlainSgd(double learning_rate) {
  v1::Optimizer optimizer;
  optimizer.mutable_sgd()->set_learning_rate(learning_rate);
  return optimizer;
}

namespace {

void PlaceOnWorkers(v1::JobPlan& plan) {
  for (int shard = 0; shard < plan.shards_size(); ++shard) {
    plan.mutable_shards(shard)->set_member(plan.workers(shard).member());
    plan.mutable_shards(shard)->set_thread(0);
  }
}

void AddReplicas(v1::JobPlan& plan) {
  plan.mutable_spec()->mutable_resources()->set_ps_replication(2);
  const int members = std::max(2, plan.shards_size());
  for (int shard = 0; shard < plan.shards_size(); ++shard) {
    v1::PlanShard& own = *plan.mutable_shards(shard);
    own.set_member("ps-" + std::to_string(shard));
    own.mutable_backup()->set_member("ps-" + std::to_string((shard + 1) % members));
  }
}

}  // namespace

v1::SyncSpec SyncOf(v1::SyncMode mode) {
  v1::SyncSpec sync;
  sync.set_mode(mode);
  return sync;
}

v1::JobPlan MakeTestPlan(const TestPlanOptions& options) {
  v1::JobPlan plan;
  plan.set_job("job-" + std::to_string(options.job_number));
  plan.set_job_number(options.job_number);
  plan.set_generation(options.generation);
  plan.set_first_step(options.first_step);
  plan.set_session_token("0123456789abcdef");
  plan.set_restore(options.restore);
  *plan.mutable_spec()->mutable_training()->mutable_optimizer() = options.optimizer;
  if (options.has_program) {
    plan.mutable_spec()->mutable_model()->mutable_external()->set_path("model.safetensors");
  }
  plan.mutable_spec()->mutable_training()->set_seed(3);
  plan.mutable_spec()->mutable_training()->set_precision(options.precision);
  if (options.precision == v1::FP16) {
    plan.mutable_spec()->mutable_training()->mutable_loss_scale()->set_initial(65536);
    plan.mutable_spec()->mutable_training()->mutable_loss_scale()->set_growth_steps(2000);
  }
  if (options.clip_norm > 0) {
    plan.mutable_spec()->mutable_training()->mutable_clip()->set_global_norm(options.clip_norm);
  }
  plan.mutable_spec()->mutable_checkpoint()->set_every_steps(options.checkpoint_every);
  *plan.mutable_spec()->mutable_sync() = options.sync;
  for (int64_t elements : options.parameters) {
    v1::Parameter& parameter = *plan.mutable_graph()->add_parameters();
    parameter.set_name("p" + std::to_string(plan.graph().parameters_size() - 1));
    parameter.add_shape(elements);
    parameter.mutable_initializer()->set_normal(1);
    parameter.set_weight_decay(options.weight_decay);
  }
  for (const int frozen : options.frozen) {
    v1::ParameterGroup& group = *plan.mutable_spec()->mutable_training()->add_parameter_groups();
    group.add_match(plan.graph().parameters(frozen).name());
    group.set_frozen(true);
  }
  for (int rank = 0; rank < options.workers; ++rank) {
    plan.add_workers()->set_member("worker-" + std::to_string(rank));
    plan.mutable_workers(rank)->set_samples(1);
  }
  for (int shard = 0; shard < options.shards; ++shard) {
    plan.add_shards()->set_member(options.member);
    plan.mutable_shards(shard)->set_thread(shard % options.threads);
  }
  if (options.sync.mode() == v1::ALLREDUCE) PlaceOnWorkers(plan);
  if (options.has_replicas) AddReplicas(plan);
  std::vector<v1::PlanChunk> chunks =
      WithAveragedSlots(plan.spec(), CutIntoChunks(plan.graph(), options.chunk_bytes));
  PlaceChunks(absl::MakeSpan(chunks), options.shards);
  plan.mutable_chunks()->Assign(chunks.begin(), chunks.end());
  return plan;
}

WireHeader PushHeader(const v1::JobPlan& plan, int64_t step, int chunk, int rank) {
  WireHeader header = FetchHeader(plan, step, chunk, rank);
  header.kind = MessageKind::kPush;
  header.dtype = WireDType::kF32;
  header.length = plan.chunks(chunk).elements() * sizeof(float);
  if (plan.spec().model().has_external()) {
    header.scalar = 0.5;
    header.loss_scale = 1;
  }
  return header;
}

WireHeader FetchHeader(const v1::JobPlan& plan, int64_t step, int chunk, int rank) {
  return {.kind = MessageKind::kFetch,
          .generation = plan.generation(),
          .job = plan.job_number(),
          .step = step,
          .chunk = static_cast<uint32_t>(chunk),
          .rank = static_cast<uint32_t>(rank)};
}

}  // namespace muster
