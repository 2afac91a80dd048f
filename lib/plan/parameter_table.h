// How a job's parameters are cut into chunks and kept by optimizers. Coordinator, ps, workers and
// checkpoints must agree, so it is all pure functions of the plan's parts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/plan/numbers.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Product of the shape; 1 for a scalar.
int64_t ElementCount(const v1::Parameter& parameter);

// Chunks of every parameter in order, each of at most `chunk_bytes` of f32, shard not yet set. A
// parameter is cut into equal chunks but for the last.
std::vector<v1::PlanChunk> CutIntoChunks(const v1::Graph& graph, int64_t chunk_bytes);
// How many those are.
int64_t ChunkCount(const v1::Graph& graph, int64_t chunk_bytes);

// The chunks of one shard, in the plan's order.
NumberedVector<LocalChunk, ChunkId> ChunksOfShard(const v1::JobPlan& plan, ShardIndex shard);

// What the optimizer keeps beside every value, in slot order (slot 0 is the value itself): {"m",
// "v"} for adam, adamw and lamb, {"momentum"} for sgd and lars with momentum, {} without, {"sum"}
// for adagrad, {"square_average"} for rmsprop.
std::vector<std::string> OptimizerSlotNames(const v1::Optimizer& optimizer);

// Optimizer slots that have chunks of their own beside those of the values: all of a local_sgd job,
// whose workers keep them and average them; of other jobs none.
int AveragedSlots(const v1::JobSpec& spec);
// The chunks of the values, and after them the same ones of every slot that is averaged.
std::vector<v1::PlanChunk> WithAveragedSlots(const v1::JobSpec& spec,
                                             std::vector<v1::PlanChunk> values);

// Whether every parameter's update is scaled by a trust ratio, which needs the norms of the whole
// parameter: lamb and lars.
bool HasTrustRatios(const v1::Optimizer& optimizer);

// The slots (0: values) that a chunk of the plan stands for: [first, last]. All of them, but with
// local_sgd, where every slot has chunks of its own.
struct SlotRange {
  int first = 0;
  int last = 0;
};
SlotRange SlotsOfChunk(const v1::JobPlan& plan, const v1::PlanChunk& chunk);

// Whether no part of a step is applied before the norm of its whole gradient is known: precision
// fp16, clipping by global norm, lamb and lars. A step whose norm is not finite is skipped then:
// version s + 1 is version s.
bool StepsAreJudged(const v1::TrainingSpec& training);

// The base learning rate of whichever optimizer is set.
double BaseLearningRate(const v1::Optimizer& optimizer);

// Learning rate of the update that turns version `step` into `step + 1`, as defined with
// v1::Schedule.
double LearningRate(const v1::TrainingSpec& training, int64_t step, int64_t total_steps);

// Steps of the whole job: training.steps, or epochs * floor(samples / batch_size), rounded to
// nearest, at least 1, at most limits::kStepsMax.
int64_t TotalSteps(const v1::JobSpec& spec, int64_t samples);

}  // namespace muster
