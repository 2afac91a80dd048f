#include "services/worker/share_check.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/graph/shape_inference.h"
#include "lib/limits/limits.h"
#include "lib/plan/chunk_check.h"
#include "lib/plan/parameter_group.h"
#include "lib/plan/sum_tree.h"
#include "lib/shard/core/plan_check.h"
#include "lib/status/status.h"
#include "lib/transport/session/session.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {
namespace {

// This limit keeps the byte count of all prefetched batches within an int64_t.
constexpr int64_t kBatchElementsMax = int64_t{1} << 50;

template <typename... Parts>
absl::Status Refused(const v1::JobPlan& plan, const Parts&... why) {
  return BadPlan(plan, absl::StrCat(why..., "; run the same version everywhere, else report it"));
}

absl::Status RefusedSetting(const v1::JobPlan& plan, absl::string_view field, int64_t value,
                            int64_t min, int64_t max) {
  return Refused(plan, field, " is ", value, ", must be in [", min, ", ", max, "]");
}

// The plan of a warm-up has no session token, because a warm-up connects to no shard. A dummy token
// lets CheckPlan() check the rest.
absl::Status CheckWhole(const v1::JobPlan& plan) {
  if (plan.rehearsal() == 0) return CheckPlan(plan);
  v1::JobPlan with_token = plan;
  with_token.set_session_token(std::string(SessionToken::kBytes, '\0'));
  return CheckPlan(with_token);
}

absl::Status CheckSettings(const v1::JobPlan& plan) {
  const v1::JobSpec& spec = plan.spec();
  const int64_t batch = spec.data().batch_size();
  if (batch < 1 || batch > limits::kBatchSizeMax) {
    return RefusedSetting(plan, "data.batch_size", batch, 1, limits::kBatchSizeMax);
  }
  const int64_t micro_batch = spec.training().micro_batch_size();
  if (micro_batch < 0 || micro_batch > limits::kBatchSizeMax) {
    return RefusedSetting(plan, "training.micro_batch_size", micro_batch, 0, limits::kBatchSizeMax);
  }
  if (spec.chunk_bytes() < 0 || spec.chunk_bytes() > limits::kChunkBytesMax) {
    return RefusedSetting(plan, "chunk_bytes", spec.chunk_bytes(), 0, limits::kChunkBytesMax);
  }
  return absl::OkStatus();
}

// Checks that the shares are contiguous in the order of ranks and cover the whole batch. The values
// are untrusted, so this subtracts where an addition could overflow.
absl::Status CheckShares(const v1::JobPlan& plan) {
  const int64_t batch = plan.spec().data().batch_size();
  int64_t next = 0;
  for (int rank = 0; rank < plan.workers_size(); ++rank) {
    const v1::PlanWorker& worker = plan.workers(rank);
    const auto bad = [&](const auto&... why) {
      return Refused(plan, "worker ", rank, " ('", worker.member(), "') has samples [",
                     worker.first_position(), ", +", worker.samples(), ") of a batch of ", batch,
                     ": ", why...);
    };
    if (worker.samples() < 1) return bad("it needs at least one");
    if (worker.first_position() != next) return bad("it must begin at ", next);
    if (worker.samples() > batch - next) return bad("it ends beyond the batch");
    next += worker.samples();
  }
  if (next == batch) return absl::OkStatus();
  return Refused(plan, "samples [", next, ", ", batch, ") of a batch of ", batch,
                 " are no worker's");
}

// Checks that each worker has the samples of its node of the tree. Requires: CheckPlan() was OK.
absl::Status CheckNodes(const v1::JobPlan& plan) {
  const int64_t logical = plan.spec().resources().workers().logical();
  if (logical == 0) return absl::OkStatus();
  const std::vector<SumNode> nodes = CutNode({.leaves = logical}, plan.workers_size());
  for (int rank = 0; rank < plan.workers_size(); ++rank) {
    const v1::PlanWorker& worker = plan.workers(rank);
    const BatchShare share = ShareOfNode(plan.spec().data().batch_size(), logical, nodes[rank]);
    if (share == BatchShare{worker.first_position(), worker.samples()}) continue;
    return Refused(plan, "worker ", rank, " ('", worker.member(), "') has ", worker.samples(),
                   " samples, its ", nodes[rank].leaves, " logical workers of ", logical, " have ",
                   share.count);
  }
  return absl::OkStatus();
}

// Infers shapes with one sample, because only the sizes of tensors depend on the batch. The code
// that creates tensors checks their sizes; this checks only those of the inputs.
absl::Status CheckGraph(const v1::JobPlan& plan) {
  const absl::StatusOr<TensorTypes> types = InferTypes(plan.graph(), /*batch=*/1);
  if (!types.ok()) return Refused(plan, "its graph: ", types.status().message());
  const int64_t elements_max = kBatchElementsMax / plan.spec().data().batch_size();
  int64_t elements = 0;
  for (const v1::GraphInput& input : plan.graph().inputs()) {
    elements += types->at(input.name()).elements();
    if (elements <= elements_max) continue;
    return Refused(plan, "with input '", input.name(), "' a sample has ", elements,
                   " elements; of a batch of ", plan.spec().data().batch_size(),
                   " each may have at most ", elements_max);
  }
  return absl::OkStatus();
}

absl::Status CheckTrained(const v1::JobPlan& plan) {
  const bool trains =
      std::ranges::any_of(plan.graph().parameters(), [&](const v1::Parameter& parameter) {
        return !TreatmentOf(plan.spec().training(), parameter).frozen;
      });
  if (trains) return absl::OkStatus();
  return Refused(plan, "all ", plan.graph().parameters_size(), " parameters are frozen");
}

}  // namespace

absl::Status CheckShare(const v1::JobPlan& plan) {
  RETURN_IF_ERROR(CheckWhole(plan));
  if (plan.shards().empty()) return Refused(plan, "no shards");
  RETURN_IF_ERROR(CheckSettings(plan));
  RETURN_IF_ERROR(CheckShares(plan));
  RETURN_IF_ERROR(CheckNodes(plan));
  RETURN_IF_ERROR(CheckGraph(plan));
  return CheckTrained(plan);
}

}  // namespace muster
