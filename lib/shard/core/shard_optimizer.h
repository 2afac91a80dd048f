// The arithmetic of a shard's updates: from gradients and one version of a chunk to the next
// version.
#pragma once

#include <cstdint>

#include "kernels/optimizer/optimizer.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/chunk_store.h"
#include "lib/shard/core/chunk_treatment.h"
#include "lib/shard/core/shard_pushes.h"
#include "lib/shard/gate/gate.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// A chunk is updated by the job's optimizer. Exceptions: a statistic moves towards the mean of the
// ranks' contributions, and local_sgd sums the values that the ranks push.
//
// Thread-compatible: runs on the shard's thread, has no lock, and never blocks. Nothing is
// allocated after construction.
class ShardOptimizer {
 public:
  // One update: from the buffers of the current version to those of the next.
  struct Update {
    LocalChunk chunk{};
    const ChunkUpdate& due;
    ChunkStore::Version from;
    ChunkStore::Version to;
    int64_t total_steps = 0;     // of the job
    int64_t updates_before = 0;  // of the job
    double clip_factor = 1;      // of the clip by the global norm
    double trust_ratio = 1;
    kernels::OutgoingStores stores = kernels::OutgoingStores::kDirect;
  };

  // The arguments must outlive this object.
  ShardOptimizer(const v1::JobPlan& plan, const ChunkTreatments& chunks, const ChunkStore& store,
                 ShardPushes& pushes);

  // local_sgd: updates are averages of values.
  bool averages() const { return averages_; }
  // Returns whether Apply() also stores the values of this chunk in the wire format.
  bool StoresWireValues(LocalChunk chunk) const {
    return store_.values_format(chunk).dtype != WireDType::kF32 && !averages_ &&
           !chunks_[chunk].is_statistic();
  }
  // Makes the update. Requires: it has a gradient. Returns the sum of squares of the gradients'
  // sum.
  double Apply(const Update& update);
  // Returns the squares that trust ratios are computed from. Requires: the update has a gradient,
  // and the chunk is no statistic.
  kernels::DirectionSquares Measure(const Update& update);

 private:
  double ApplyToStatistic(const Update& update);
  double ApplyRule(const Update& update);
  kernels::OptimizerBuffers BuffersOf(const Update& update);
  kernels::OptimizerSettings SettingsFor(LocalChunk chunk) const;
  kernels::GradientClip ClipFor(const Update& update) const;
  double LearningRateFor(const Update& update) const;

  const v1::TrainingSpec& training_;
  const ChunkTreatments& chunks_;
  const ChunkStore& store_;
  ShardPushes& pushes_;
  const kernels::OptimizerSettings settings_;
  const bool has_program_;  // model.external: pushes name the learning rate
  const bool averages_;
};

}  // namespace muster
