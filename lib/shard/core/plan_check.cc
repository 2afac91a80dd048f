#include "lib/shard/core/plan_check.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "lib/limits/limits.h"
#include "lib/plan/chunk_check.h"
#include "lib/plan/parameter_table.h"
#include "lib/shard/chunks/loss_scale.h"
#include "lib/shard/replication/shard_replica.h"
#include "lib/status/status.h"
#include "lib/transport/session/session.h"

namespace muster {
namespace {

absl::Status CheckMembers(const v1::JobPlan& plan) {
  if (plan.workers_size() < 1 || plan.workers_size() > limits::kWorkersMax) {
    return BadPlan(plan, absl::StrCat(plan.workers_size(), " workers; 1 to ", limits::kWorkersMax,
                                      " are allowed"));
  }
  if (plan.session_token().size() != SessionToken::kBytes) {
    return BadPlan(plan, absl::StrCat("a token of ", plan.session_token().size(), " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckTraining(const v1::JobPlan& plan) {
  const v1::TrainingSpec& training = plan.spec().training();
  if (training.optimizer().kind_case() == v1::Optimizer::KIND_NOT_SET) {
    return BadPlan(plan, "no optimizer");
  }
  if (plan.first_step() < 0 || plan.first_step() > limits::kStepsMax) {
    return BadPlan(plan, absl::StrCat("first step ", plan.first_step()));
  }
  if (training.precision() == v1::FP16 && !(training.loss_scale().initial() >= LossScale::kMin &&
                                            training.loss_scale().initial() <= LossScale::kMax)) {
    return BadPlan(plan, absl::StrCat("loss scale ", training.loss_scale().initial()));
  }
  return absl::OkStatus();
}

absl::Status CheckStatistics(const v1::JobPlan& plan) {
  for (const v1::Parameter& parameter : plan.graph().parameters()) {
    const double momentum = parameter.statistic_momentum();
    if (!parameter.has_statistic_momentum() || (momentum > 0 && momentum <= 1)) continue;
    return BadPlan(plan, absl::StrCat("parameter '", parameter.name(), "': statistic momentum ",
                                      momentum, " is not in (0, 1]"));
  }
  return absl::OkStatus();
}

// Gradients are divided by shares of the batch, so every share must be positive.
absl::Status CheckSamples(const v1::JobPlan& plan) {
  for (int rank = 0; rank < plan.workers_size(); ++rank) {
    if (plan.workers(rank).samples() >= 1) continue;
    return BadPlan(plan, absl::StrCat("worker ", rank, " has ", plan.workers(rank).samples(),
                                      " samples of a batch"));
  }
  return absl::OkStatus();
}

// Refuses judged steps in this mode: a verdict needs one step that all shards agree on.
absl::Status CheckUnjudged(const v1::JobPlan& plan, absl::string_view mode) {
  if (!StepsAreJudged(plan.spec().training())) return absl::OkStatus();
  return BadPlan(plan, absl::StrCat("sync mode ", mode,
                                    " with fp16, clip.global_norm, lamb or lars: only bsp and "
                                    "allreduce have one gradient for all shards"));
}

absl::Status CheckLocalSgd(const v1::JobPlan& plan) {
  RETURN_IF_ERROR(CheckUnjudged(plan, "local_sgd"));
  const v1::SyncSpec& sync = plan.spec().sync();
  if (sync.every() < 1) return BadPlan(plan, absl::StrCat("local_sgd every ", sync.every()));
  const int64_t checkpoint_every = plan.spec().checkpoint().every_steps();
  if (checkpoint_every % sync.every() != 0) {
    return BadPlan(plan, absl::StrCat("a checkpoint every ", checkpoint_every,
                                      " steps, which is no multiple of the ", sync.every(),
                                      " between two averagings"));
  }
  const v1::CompressionKind kind = sync.compression().kind();
  if (kind > v1::COMPRESSION_NONE) {
    return BadPlan(plan, "local_sgd exchanges values, which cannot be compressed");
  }
  return absl::OkStatus();
}

absl::Status CheckBackupWorkers(const v1::JobPlan& plan) {
  const int backup = plan.spec().sync().backup_workers();
  if (backup < 0 || backup >= plan.workers_size()) {
    return BadPlan(plan, absl::StrCat(backup, " backup workers of ", plan.workers_size()));
  }
  return backup > 0 ? CheckSamples(plan) : absl::OkStatus();
}

// A program names the learning rate and the weight of each push. A shard cannot use them in these
// jobs: the header of a sum to a replica has no room for a trust ratio besides.
absl::Status CheckProgram(const v1::JobPlan& plan) {
  if (!plan.spec().model().has_external()) return absl::OkStatus();
  const v1::TrainingSpec& training = plan.spec().training();
  if (plan.spec().sync().mode() > v1::ASP) {
    return BadPlan(plan, "model.external in a mode other than bsp, ssp and asp");
  }
  if (training.precision() == v1::FP16) return BadPlan(plan, "model.external with fp16");
  if (HasTrustRatios(training.optimizer()) && IsReplicated(plan)) {
    return BadPlan(plan, "model.external with lamb or lars and replicas of shards");
  }
  return absl::OkStatus();
}

// Shards add the gradients of ranks along the tree only if each step has those of all ranks, as
// they are.
absl::Status CheckLogicalWorkers(const v1::JobPlan& plan) {
  const v1::JobSpec& spec = plan.spec();
  const int64_t logical = spec.resources().workers().logical();
  if (logical == 0) return absl::OkStatus();
  const auto bad = [&](const auto&... why) {
    return BadPlan(plan, absl::StrCat(logical, " logical workers", why...));
  };
  if (logical > limits::kWorkersMax || logical < plan.workers_size()) {
    return bad(" of ", plan.workers_size(), " workers");
  }
  if (logical > spec.data().batch_size()) {
    return bad(" for a batch of ", spec.data().batch_size());
  }
  if (spec.sync().mode() > v1::BSP) return bad(" in a mode other than bsp");
  if (spec.sync().backup_workers() != 0) return bad(" with backup workers");
  if (spec.sync().compression().kind() > v1::COMPRESSION_NONE) return bad(" with compression");
  if (spec.training().micro_batch_size() != 0) return bad(" with micro-batches");
  if (spec.model().has_external()) return bad(" with model.external");
  if (spec.training().has_deterministic() && !spec.training().deterministic()) {
    return bad(" without training.deterministic");
  }
  return absl::OkStatus();
}

absl::Status CheckMode(const v1::JobPlan& plan) {
  const v1::SyncSpec& sync = plan.spec().sync();
  if (sync.backup_workers() != 0 && sync.mode() > v1::BSP) {
    return BadPlan(plan, "backup workers in a mode other than bsp");
  }
  switch (sync.mode()) {
    case v1::SSP:
      if (sync.staleness() < 0) {
        return BadPlan(plan, absl::StrCat("staleness ", sync.staleness()));
      }
      RETURN_IF_ERROR(CheckUnjudged(plan, "ssp"));
      return CheckSamples(plan);
    case v1::ASP:
      RETURN_IF_ERROR(CheckUnjudged(plan, "asp"));
      return CheckSamples(plan);
    case v1::LOCAL_SGD:
      return CheckLocalSgd(plan);
    default:
      return CheckBackupWorkers(plan);
  }
}

}  // namespace

absl::Status CheckPlan(const v1::JobPlan& plan) {
  RETURN_IF_ERROR(CheckMembers(plan));
  RETURN_IF_ERROR(CheckTraining(plan));
  RETURN_IF_ERROR(CheckStatistics(plan));
  RETURN_IF_ERROR(CheckChunks(plan));
  RETURN_IF_ERROR(CheckReplicas(plan));
  RETURN_IF_ERROR(CheckProgram(plan));
  RETURN_IF_ERROR(CheckLogicalWorkers(plan));
  return CheckMode(plan);
}

}  // namespace muster
