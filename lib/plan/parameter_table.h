// The rules by which a job's parameters are cut into chunks and kept by optimizers. Coordinator,
// ps, workers and checkpoints must agree, so these are pure functions of the plan's parts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/plan/numbers.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Returns the product of the shape; 1 for a scalar.
int64_t ElementCount(const v1::Parameter& parameter);

// Returns the chunks of every parameter in order, without shards. Each has at most `chunk_bytes` of
// f32. All chunks of a parameter are equal, except the last.
std::vector<v1::PlanChunk> CutIntoChunks(const v1::Graph& graph, int64_t chunk_bytes);
// Returns the number of these chunks.
int64_t ChunkCount(const v1::Graph& graph, int64_t chunk_bytes);

// Returns the chunks of one shard, in the plan's order.
NumberedVector<LocalChunk, ChunkId> ChunksOfShard(const v1::JobPlan& plan, ShardIndex shard);

// Returns the names of the values that the optimizer keeps for every parameter value, in slot
// order. Slot 0 is the value itself. {"m", "v"} for adam, adamw and lamb; {"momentum"} for sgd and
// lars with momentum, {} without; {"sum"} for adagrad; {"square_average"} for rmsprop.
std::vector<std::string> OptimizerSlotNames(const v1::Optimizer& optimizer);

// Returns the number of optimizer slots that have chunks of their own. In a local_sgd job these are
// all slots, because its workers keep and average them. In other jobs there are none.
int AveragedSlots(const v1::JobSpec& spec);
// Returns the chunks of the values, followed by the same chunks for every averaged slot.
std::vector<v1::PlanChunk> WithAveragedSlots(const v1::JobSpec& spec,
                                             std::vector<v1::PlanChunk> values);

// Returns whether every parameter's update is scaled by a trust ratio, which needs the norms of the
// whole parameter: lamb and lars.
bool HasTrustRatios(const v1::Optimizer& optimizer);

// The slots [first, last] that a chunk of the plan contains; 0 is the values. A chunk contains all
// slots, except in local_sgd, where every slot has chunks of its own.
struct SlotRange {
  int first = 0;
  int last = 0;
};
SlotRange SlotsOfChunk(const v1::JobPlan& plan, const v1::PlanChunk& chunk);

// Returns whether no part of a step is applied before the norm of its whole gradient is known. True
// for precision fp16, clipping by global norm, lamb and lars. A step with a non-finite norm is then
// skipped: version s + 1 equals version s.
bool StepsAreJudged(const v1::TrainingSpec& training);

// Returns the base learning rate of the optimizer that is set.
double BaseLearningRate(const v1::Optimizer& optimizer);

// Returns the learning rate of the update from version `step` to `step + 1`, as v1::Schedule
// defines it.
double LearningRate(const v1::TrainingSpec& training, int64_t step, int64_t total_steps);

// Returns the number of steps of `epochs` passes over `samples` training samples, clamped to
// [1, limits::kStepsMax]. An epoch of a mixture has the samples of all parts together.
// - last_batch drop: epochs * floor(samples / batch_size), rounded to nearest.
// - last_batch continue: ceil(epochs * samples / batch_size), of a whole number of samples.
int64_t StepsOfEpochs(const v1::DataSpec& data, int64_t samples, double epochs);

// Returns the number of steps of the whole job: training.steps, or StepsOfEpochs().
int64_t TotalSteps(const v1::JobSpec& spec, int64_t samples);

}  // namespace muster
