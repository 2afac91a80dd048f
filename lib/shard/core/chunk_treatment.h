// How a job trains the chunks of one shard, by the plan.
#pragma once

#include "lib/plan/numbers.h"
#include "lib/shard/chunks/chunk_store.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

struct ChunkTreatment {
  int parameter = 0;
  bool trained = true;    // has gradients: not frozen
  TrainedChunk number{};  // only of a trained chunk
  double learning_rate_factor = 1;
  double weight_decay = 0;
  double statistic_momentum = 0;  // > 0: a statistic, not trained by the optimizer

  bool is_statistic() const { return statistic_momentum > 0; }
};

using ChunkTreatments = NumberedVector<LocalChunk, ChunkTreatment>;

// Returns the treatment of every chunk in the store. Requires: the plan is valid (CheckPlan), and
// `store` was made with it.
ChunkTreatments TreatmentsOf(const v1::JobPlan& plan, const ChunkStore& store);
// Returns the number of chunks with gradients.
int TrainedCount(const ChunkTreatments& chunks);

}  // namespace muster
