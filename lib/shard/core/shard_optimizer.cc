#include "lib/shard/core/shard_optimizer.h"

#include <cstddef>

#include "lib/plan/parameter_table.h"
#include "lib/shard/chunks/optimizer_settings.h"

namespace muster {
namespace {

using kernels::Streaming;

// The memory of a shard of which everything may stay in the caches between two steps. The updates
// of a larger shard write its slots past the caches, because the slots would be evicted before the
// next step.
constexpr size_t kCachedBytes = size_t{64} << 20;

}  // namespace

ShardOptimizer::ShardOptimizer(const v1::JobPlan& plan, const ChunkTreatments& chunks,
                               const ChunkStore& store, ShardPushes& pushes)
    : training_(plan.spec().training()),
      chunks_(chunks),
      store_(store),
      pushes_(pushes),
      settings_(OptimizerSettingsOf(training_.optimizer())),
      has_program_(plan.spec().model().has_external()),
      averages_(plan.spec().sync().mode() == v1::LOCAL_SGD) {}

double ShardOptimizer::Apply(const Update& update) {
  if (averages_) {
    return ShardPushes::Sum(pushes_.Gather(update.chunk, update.due),
                            store_.Array(update.chunk, update.to, 0),
                            store_.elements(update.chunk));
  }
  return chunks_[update.chunk].is_statistic() ? ApplyToStatistic(update) : ApplyRule(update);
}

// The slots of a statistic stay 0 in both versions.
double ShardOptimizer::ApplyToStatistic(const Update& update) {
  const LocalChunk chunk = update.chunk;
  const ShardPushes::Gathered mean = pushes_.GatherMean(chunk, update.due);
  return kernels::ApplyStatistic(store_.Array(chunk, update.to, 0),
                                 store_.Array(chunk, update.from, 0), mean.gradients, mean.count,
                                 chunks_[chunk].statistic_momentum * update.due.share,
                                 store_.elements(chunk), mean.joins);
}

double ShardOptimizer::ApplyRule(const Update& update) {
  const LocalChunk chunk = update.chunk;
  kernels::OptimizerBuffers buffers = BuffersOf(update);
  buffers.outgoing_stores = update.stores;
  if (StoresWireValues(chunk)) {
    buffers.wire_out = store_.WireValues(chunk, update.to).data();
    buffers.wire_type = FloatTypeOf(store_.values_format(chunk).dtype);
    if (buffers.streaming != Streaming::kNothing) buffers.streaming = Streaming::kSlotsAndValues;
  }
  kernels::OptimizerSettings settings = SettingsFor(chunk);
  settings.trust_ratio = update.trust_ratio;
  const double learning_rate = LearningRateFor(update) * update.due.share * update.due.rate_factor;
  return kernels::ApplyOptimizer(settings, learning_rate, update.updates_before, buffers,
                                 store_.elements(chunk), ClipFor(update));
}

kernels::DirectionSquares ShardOptimizer::Measure(const Update& update) {
  return kernels::MeasureDirection(SettingsFor(update.chunk), update.updates_before,
                                   BuffersOf(update), store_.elements(update.chunk),
                                   ClipFor(update));
}

kernels::OptimizerBuffers ShardOptimizer::BuffersOf(const Update& update) {
  const LocalChunk chunk = update.chunk;
  const ShardPushes::Gathered gathered = pushes_.Gather(chunk, update.due);
  kernels::OptimizerBuffers buffers{.gradients = gathered.gradients,
                                    .ranks = gathered.count,
                                    .joins = gathered.joins,
                                    .values_in = store_.Array(chunk, update.from, 0),
                                    .values_out = store_.Array(chunk, update.to, 0)};
  if (store_.bytes() + pushes_.store().memory().size() > kCachedBytes) {
    buffers.streaming = Streaming::kSlots;
  }
  for (int slot = 0; slot < store_.arrays() - 1; ++slot) {
    buffers.slots_in[slot] = store_.Array(chunk, update.from, 1 + slot);
    buffers.slots_out[slot] = store_.Array(chunk, update.to, 1 + slot);
  }
  return buffers;
}

kernels::OptimizerSettings ShardOptimizer::SettingsFor(LocalChunk chunk) const {
  kernels::OptimizerSettings settings = settings_;
  settings.weight_decay = chunks_[chunk].weight_decay;
  return settings;
}

kernels::GradientClip ShardOptimizer::ClipFor(const Update& update) const {
  kernels::GradientClip clip{.factor =
                                 pushes_.MeanFactor(update.chunk, update.due) * update.clip_factor};
  if (training_.clip().has_value()) clip.limit = training_.clip().value();
  return clip;
}

double ShardOptimizer::LearningRateFor(const Update& update) const {
  if (has_program_) return pushes_.TermsOf(update.chunk, update.due).learning_rate;
  return LearningRate(training_, update.due.step, update.total_steps) *
         chunks_[update.chunk].learning_rate_factor;
}

}  // namespace muster
