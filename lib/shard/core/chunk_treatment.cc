#include "lib/shard/core/chunk_treatment.h"

#include <algorithm>

#include "lib/plan/parameter_group.h"
#include "lib/shard/chunks/optimizer_settings.h"

namespace muster {

ChunkTreatments TreatmentsOf(const v1::JobPlan& plan, const ChunkStore& store) {
  const v1::TrainingSpec& training = plan.spec().training();
  const double weight_decay = OptimizerSettingsOf(training.optimizer()).weight_decay;
  ChunkTreatments chunks;
  int trained = 0;
  for (const LocalChunk index : store.chunks()) {
    const int number = plan.chunks(ToInt(store.id(index))).parameter();
    const v1::Parameter& parameter = plan.graph().parameters(number);
    const ParameterTreatment treatment = TreatmentOf(training, parameter);
    ChunkTreatment& chunk = chunks.emplace_back();
    chunk.parameter = number;
    chunk.trained = !treatment.frozen;
    if (chunk.trained) chunk.number = TrainedChunk(trained++);
    chunk.learning_rate_factor = treatment.learning_rate_factor;
    chunk.weight_decay = treatment.WeightDecay(weight_decay);
    chunk.statistic_momentum = parameter.statistic_momentum();
  }
  return chunks;
}

int TrainedCount(const ChunkTreatments& chunks) {
  return static_cast<int>(std::ranges::count_if(chunks, &ChunkTreatment::trained));
}

}  // namespace muster
