#include "lib/plan/parameter_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "lib/limits/limits.h"

namespace muster {
namespace {

int64_t ChunkElements(int64_t chunk_bytes) {
  return std::max<int64_t>(1, chunk_bytes / static_cast<int64_t>(sizeof(float)));
}

}  // namespace

int64_t ElementCount(const v1::Parameter& parameter) {
  return std::accumulate(parameter.shape().begin(), parameter.shape().end(), int64_t{1},
                         std::multiplies<>());
}

std::vector<v1::PlanChunk> CutIntoChunks(const v1::Graph& graph, int64_t chunk_bytes) {
  const int64_t chunk_elements = ChunkElements(chunk_bytes);
  std::vector<v1::PlanChunk> chunks;
  for (int p = 0; p < graph.parameters_size(); ++p) {
    const int64_t elements = ElementCount(graph.parameters(p));
    for (int64_t offset = 0; offset < elements; offset += chunk_elements) {
      v1::PlanChunk& chunk = chunks.emplace_back();
      chunk.set_parameter(p);
      chunk.set_offset(offset);
      chunk.set_elements(std::min(chunk_elements, elements - offset));
    }
  }
  return chunks;
}

int64_t ChunkCount(const v1::Graph& graph, int64_t chunk_bytes) {
  const int64_t chunk_elements = ChunkElements(chunk_bytes);
  int64_t chunks = 0;
  for (const v1::Parameter& parameter : graph.parameters()) {
    chunks += (ElementCount(parameter) + chunk_elements - 1) / chunk_elements;
  }
  return chunks;
}

NumberedVector<LocalChunk, ChunkId> ChunksOfShard(const v1::JobPlan& plan, ShardIndex shard) {
  NumberedVector<LocalChunk, ChunkId> chunks;
  for (const ChunkId id : NumbersBelow<ChunkId>(plan.chunks_size())) {
    if (ShardIndex(plan.chunks(ToInt(id)).shard()) == shard) chunks.emplace_back(id);
  }
  return chunks;
}

std::vector<std::string> OptimizerSlotNames(const v1::Optimizer& optimizer) {
  switch (optimizer.kind_case()) {
    case v1::Optimizer::kSgd:
      return optimizer.sgd().momentum() > 0 ? std::vector<std::string>{"momentum"}
                                            : std::vector<std::string>{};
    case v1::Optimizer::kAdam:
    case v1::Optimizer::kAdamw:
      return {"m", "v"};
    case v1::Optimizer::kAdagrad:
      return {"sum"};
    case v1::Optimizer::kRmsprop:
      return {"square_average"};
    case v1::Optimizer::kLamb:
      return {"m", "v"};
    case v1::Optimizer::kLars:
      return optimizer.lars().momentum() > 0 ? std::vector<std::string>{"momentum"}
                                             : std::vector<std::string>{};
    case v1::Optimizer::KIND_NOT_SET:
      break;
  }
  return {};
}

int AveragedSlots(const v1::JobSpec& spec) {
  if (spec.sync().mode() != v1::LOCAL_SGD) return 0;
  return static_cast<int>(OptimizerSlotNames(spec.training().optimizer()).size());
}

std::vector<v1::PlanChunk> WithAveragedSlots(const v1::JobSpec& spec,
                                             std::vector<v1::PlanChunk> values) {
  const size_t count = values.size();
  const int slots = AveragedSlots(spec);
  values.reserve(count * (1 + slots));
  for (int slot = 1; slot <= slots; ++slot) {
    for (size_t i = 0; i < count; ++i) {
      v1::PlanChunk& chunk = values.emplace_back(values[i]);
      chunk.set_slot(slot);
    }
  }
  return values;
}

bool HasTrustRatios(const v1::Optimizer& optimizer) {
  return optimizer.has_lamb() || optimizer.has_lars();
}

SlotRange SlotsOfChunk(const v1::JobPlan& plan, const v1::PlanChunk& chunk) {
  if (plan.spec().sync().mode() == v1::LOCAL_SGD) return {chunk.slot(), chunk.slot()};
  return {0, static_cast<int>(OptimizerSlotNames(plan.spec().training().optimizer()).size())};
}

bool StepsAreJudged(const v1::TrainingSpec& training) {
  return training.precision() == v1::FP16 || training.clip().has_global_norm() ||
         HasTrustRatios(training.optimizer());
}

double BaseLearningRate(const v1::Optimizer& optimizer) {
  switch (optimizer.kind_case()) {
    case v1::Optimizer::kSgd:
      return optimizer.sgd().learning_rate();
    case v1::Optimizer::kAdam:
      return optimizer.adam().learning_rate();
    case v1::Optimizer::kAdamw:
      return optimizer.adamw().learning_rate();
    case v1::Optimizer::kAdagrad:
      return optimizer.adagrad().learning_rate();
    case v1::Optimizer::kRmsprop:
      return optimizer.rmsprop().learning_rate();
    case v1::Optimizer::kLamb:
      return optimizer.lamb().learning_rate();
    case v1::Optimizer::kLars:
      return optimizer.lars().learning_rate();
    case v1::Optimizer::KIND_NOT_SET:
      break;
  }
  return 0;
}

double LearningRate(const v1::TrainingSpec& training, int64_t step, int64_t total_steps) {
  const double base = BaseLearningRate(training.optimizer());
  const v1::Schedule& schedule = training.schedule();
  const int64_t warmup = schedule.warmup_steps();
  if (step < warmup) return base * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double since = static_cast<double>(step - warmup);
  const double progress = std::min(1.0, since / std::max<double>(1, total_steps - warmup));
  switch (schedule.kind_case()) {
    case v1::Schedule::kStep:
      return base *
             std::pow(schedule.step().factor(),
                      std::floor(since / std::max<int64_t>(1, schedule.step().every_steps())));
    case v1::Schedule::kPoly: {
      const double power = schedule.poly().power() > 0 ? schedule.poly().power() : 1;
      const double final_ratio = schedule.poly().final_ratio();
      return base * (final_ratio + (1 - final_ratio) * std::pow(1 - progress, power));
    }
    case v1::Schedule::kCosine: {
      const double final_ratio = schedule.cosine().final_ratio();
      return base *
             (final_ratio + (1 - final_ratio) * (1 + std::cos(std::numbers::pi * progress)) / 2);
    }
    case v1::Schedule::kConstant:
    case v1::Schedule::KIND_NOT_SET:
      break;
  }
  return base;
}

int64_t StepsOfEpochs(const v1::DataSpec& data, int64_t samples, double epochs) {
  const int64_t batch_size = std::max<int64_t>(1, data.batch_size());
  // Clamps before the cast, which could overflow.
  const auto rounded = [](double value, int64_t max) {
    return static_cast<int64_t>(std::clamp(std::round(value), 1.0, static_cast<double>(max)));
  };
  if (data.last_batch() == v1::LAST_BATCH_CONTINUE) {
    // Rounds to samples first: 1.1 * 10 is a little more than 11.
    const int64_t trained =
        rounded(epochs * static_cast<double>(samples), limits::kStepsMax * batch_size);
    return (trained + batch_size - 1) / batch_size;
  }
  return rounded(epochs * static_cast<double>(samples / batch_size), limits::kStepsMax);
}

int64_t TotalSteps(const v1::JobSpec& spec, int64_t samples) {
  if (spec.training().length_case() == v1::TrainingSpec::kSteps) return spec.training().steps();
  return StepsOfEpochs(spec.data(), samples, spec.training().epochs());
}

}  // namespace muster
