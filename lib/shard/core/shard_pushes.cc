#include "lib/shard/core/shard_pushes.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "lib/codec/codec.h"
#include "lib/plan/sum_tree.h"
#include "lib/shard/gate/make_gate.h"
#include "lib/shard/replication/shard_replica.h"

namespace muster {
namespace {

// Returns how the gradients of all ranks become the root of the job's sum tree. Empty: the job has
// no logical workers.
std::vector<uint8_t> JoinsOfRanks(const v1::JobPlan& plan) {
  const SumNode root = {.leaves = plan.spec().resources().workers().logical()};
  if (root.leaves == 0) return {};
  return JoinsOf(root, CutNode(root, plan.workers_size()));
}

}  // namespace

kernels::FloatType FloatTypeOf(WireDType dtype) {
  switch (dtype) {
    case WireDType::kF16:
      return kernels::FloatType::kF16;
    case WireDType::kBf16:
      return kernels::FloatType::kBf16;
    case WireDType::kF32:
    case WireDType::kNone:
      return kernels::FloatType::kF32;
  }
  return kernels::FloatType::kF32;
}

ShardPushes::ShardPushes(const v1::JobPlan& plan, ShardIndex shard, const ChunkTreatments& chunks,
                         std::unique_ptr<GradientStore> store)
    : treatments_(chunks),
      store_(std::move(store)),
      ranks_(plan.workers_size()),
      has_program_(plan.spec().model().has_external()),
      is_replica_(IsOfReplica(plan)),
      has_replica_(HasReplica(plan, shard)),
      are_updates_(PushesAreUpdates(plan)),
      joins_(JoinsOfRanks(plan)),
      chunks_(chunks.size()),
      pushes_(chunks.size(), plan.workers_size()),
      gradients_(plan.workers_size()) {}

// ---------------------------------------------------------------- one push

RefusalReason ShardPushes::Check(LocalChunk chunk, const WireHeader& header) const {
  const WireFormat& format = store_->format(chunk);
  const bool has_gradient =
      !has_program_ || header.dtype != WireDType::kNone || header.codec != WireCodec::kRaw;
  if (has_gradient && (header.dtype != format.dtype || header.codec != format.codec)) {
    return RefusalReason::kBadHeader;
  }
  if (header.length != (has_gradient ? static_cast<uint64_t>(format.bytes) : 0)) {
    return RefusalReason::kWrongLength;
  }
  if (!has_program_) return RefusalReason::kNone;
  const bool rate_is_valid = std::isfinite(header.scalar) && header.scalar >= 0;
  // Gradients are multiplied by the reciprocal as a float, so a weight must not be subnormal. A
  // replica gets its shard's factor instead.
  const bool weight_is_valid =
      is_replica_ || (std::isnormal(header.loss_scale) && header.loss_scale > 0);
  return rate_is_valid && weight_is_valid ? RefusalReason::kNone : RefusalReason::kBadHeader;
}

absl::Span<std::byte> ShardPushes::Begin(LocalChunk chunk, Rank rank) {
  pushes_(chunk, rank).receiving = tickets_.Take();
  return store_->PushMemory(chunk, rank);
}

bool ShardPushes::End(LocalChunk chunk, Rank rank) {
  Tickets::Ticket& receiving = pushes_(chunk, rank).receiving;
  const bool was_receiving(receiving);
  receiving.GiveBack();
  return was_receiving;
}

RefusalReason ShardPushes::Take(LocalChunk chunk, int64_t version, const WireHeader& header,
                                absl::Span<const std::byte> payload, PayloadLease lease) {
  const auto rank = Rank(header.rank);
  Terms& terms = pushes_(chunk, rank).terms;
  std::optional<double>& rate = chunks_[chunk].learning_rate;
  // A late push of backup workers is not part of the current step.
  const bool ranks_agree = has_program_ && !are_updates_ && header.step == version;
  if (ranks_agree && rate.value_or(header.scalar) != header.scalar) {
    return RefusalReason::kOtherLearningRate;
  }
  terms.has_gradient = !has_program_ || header.length > 0;
  if (terms.has_gradient && !TakeGradient(chunk, rank, payload, std::move(lease))) {
    return RefusalReason::kBadPayload;
  }
  if (ranks_agree) rate = header.scalar;
  if (has_program_) {
    terms.learning_rate = header.scalar;
    terms.weight = header.loss_scale;
  }
  if (is_replica_) {
    // The header of a sum carries the shard's verdict, see ReplicaFeed::SendSum().
    terms.skipped = std::isnan(header.loss_scale);
    terms.factor = header.loss_scale;
    if (!has_program_) terms.trust_ratio = header.scalar;
  }
  return RefusalReason::kNone;
}

// Leaves the gradient in its sender's memory if it can be read there: raw, and aligned for floats.
bool ShardPushes::TakeGradient(LocalChunk chunk, Rank rank, absl::Span<const std::byte> payload,
                               PayloadLease lease) {
  const WireFormat& format = store_->format(chunk);
  // A lent payload may be misaligned for floats; it is copied then.
  if (reinterpret_cast<uintptr_t>(payload.data()) % alignof(float) != 0 && lease) {
    const absl::Span<std::byte> own = store_->PushMemory(chunk, rank);
    std::memcpy(own.data(), payload.data(), own.size());
    payload = own;
    lease = {};
  }
  Push& push = pushes_(chunk, rank);
  if (format.codec == WireCodec::kRaw) {
    push.gradient = {.elements = payload.data(), .type = FloatTypeOf(format.dtype)};
    push.lease = std::move(lease);
    return true;
  }
  const absl::Span<float> own = store_->Gradient(chunk, rank);
  push.gradient = {.elements = own.data()};
  return Decode(format, payload, own).ok();
}

void ShardPushes::DropAll() {
  for (Push& push : pushes_) push.lease = {};
}

// ---------------------------------------------------------------- the due update

// If there is no program, this looks at the first rank only.
bool ShardPushes::HasGradient(LocalChunk chunk, const ChunkUpdate& update) const {
  return std::ranges::any_of(update.ranks,
                             [&](Rank rank) { return pushes_(chunk, rank).terms.has_gradient; });
}

double ShardPushes::MeanFactor(LocalChunk chunk, const ChunkUpdate& update) const {
  if (is_replica_) return TermsOf(chunk, update).factor;
  if (!has_program_) return update.gradient_factor;
  double weights = 0;
  for (const Rank rank : update.ranks) {
    const Terms& terms = pushes_(chunk, rank).terms;
    if (terms.has_gradient || !treatments_[chunk].is_statistic()) weights += terms.weight;
  }
  return 1 / weights;
}

// Returns the order in which kernels add `count` gradients. One gradient needs none: it is the sum
// already, or the only rank's.
const uint8_t* ShardPushes::JoinsOf(int count) const {
  if (joins_.empty() || count <= 1) return nullptr;
  CHECK_EQ(static_cast<size_t>(count), gradients_.size()) << "a node of the sum tree is missing";
  return joins_.data();
}

ShardPushes::Gathered ShardPushes::Gather(LocalChunk chunk, const ChunkUpdate& update) {
  int count = 0;
  if (is_summed(chunk)) {
    gradients_[count++] = {.elements = SumPlace(chunk, update).data()};
  } else {
    for (const Rank rank : update.ranks) {
      const Push& push = pushes_(chunk, rank);
      if (push.terms.has_gradient) gradients_[count++] = push.gradient;
    }
  }
  return {.gradients = gradients_.data(), .count = count, .joins = JoinsOf(count)};
}

ShardPushes::Gathered ShardPushes::GatherMean(LocalChunk chunk, const ChunkUpdate& update) {
  const Gathered gathered = Gather(chunk, update);
  const double factor = MeanFactor(chunk, update);
  if (factor == 1) return gathered;
  const absl::Span<float> mean = store_->Gradient(chunk, update.ranks[0]);
  Sum(gathered, mean.data(), static_cast<int64_t>(mean.size()));
  for (float& element : mean) element *= static_cast<float>(factor);
  gradients_[0] = {.elements = mean.data()};
  return {.gradients = gradients_.data(), .count = 1};
}

double ShardPushes::Sum(const Gathered& gathered, float* out, int64_t elements) {
  return kernels::SumGradients(out, gathered.gradients, gathered.count, elements, gathered.joins);
}

double ShardPushes::Sum(LocalChunk chunk, const ChunkUpdate& update) {
  const Gathered gathered = Gather(chunk, update);
  double squares = 0;
  if (gathered.count > 0) {
    const absl::Span<float> sum = SumPlace(chunk, update);
    squares = Sum(gathered, sum.data(), static_cast<int64_t>(sum.size()));
    const double factor = MeanFactor(chunk, update);
    squares = PartOfNorm(chunk, squares * factor * factor);
  }
  ReturnLeases(chunk, update);
  chunks_[chunk].summed = true;
  return squares;
}

absl::Span<float> ShardPushes::SumPlace(LocalChunk chunk, const ChunkUpdate& update) const {
  return has_replica_ ? store_->Sum(chunk) : store_->Gradient(chunk, update.ranks[0]);
}

double ShardPushes::PartOfNorm(LocalChunk chunk, double sum_of_squares) const {
  if (!treatments_[chunk].is_statistic()) return sum_of_squares;
  return std::isfinite(sum_of_squares) ? 0 : std::numeric_limits<double>::quiet_NaN();
}

void ShardPushes::KeepSquares(LocalChunk chunk, const ChunkUpdate& update, double sum_of_squares) {
  chunks_[chunk].sum_of_squares = sum_of_squares;
  if (are_updates_) pushes_(chunk, update.ranks[0]).sum_of_squares = sum_of_squares;
}

void ShardPushes::Applied(LocalChunk chunk, const ChunkUpdate& update) {
  ReturnLeases(chunk, update);
  chunks_[chunk].summed = false;
  chunks_[chunk].learning_rate.reset();
}

void ShardPushes::ReturnLeases(LocalChunk chunk, const ChunkUpdate& update) {
  if (are_updates_) return Drop(chunk, update.ranks[0]);
  for (const Rank rank : ranks_) Drop(chunk, rank);
}

}  // namespace muster
