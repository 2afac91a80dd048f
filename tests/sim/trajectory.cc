#include "tests/sim/trajectory.h"

#include <algorithm>
#include <bit>

#include "lib/plan/sum_tree.h"

namespace muster {
namespace {

uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 27;
  x *= 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The gradients of one chunk in one step.
class StepGradients {
 public:
  StepGradients(const v1::JobPlan& plan, int chunk, int64_t step)
      : chunk_(plan.chunks(chunk)),
        step_(step),
        batch_(plan.spec().data().batch_size()),
        logical_(plan.spec().resources().workers().logical()) {}

  // Returns the sum over the worker's samples.
  std::vector<float> SumOf(const v1::PlanWorker& worker) const {
    return SumOf(worker, {.leaves = leaves()});
  }

 private:
  // The whole batch is one leaf if the job has no logical workers.
  int64_t leaves() const { return std::max<int64_t>(1, logical_); }

  // Adds the worker's samples of a node along the tree, directly from the tree's definition.
  // Returns an empty sum if the worker has none of them.
  std::vector<float> SumOf(const v1::PlanWorker& worker, SumNode node) const {
    const BatchShare share = ShareOfNode(batch_, leaves(), node);
    const int64_t first = std::max(share.first, worker.first_position());
    const int64_t end =
        std::min(share.first + share.count, worker.first_position() + worker.samples());
    if (first >= end) return {};
    if (node.leaves == 1) return SumOfSamples(first, end);
    const int64_t left = (node.leaves + 1) / 2;
    std::vector<float> sum = SumOf(worker, {.first_leaf = node.first_leaf, .leaves = left});
    const std::vector<float> right =
        SumOf(worker, {.first_leaf = node.first_leaf + left, .leaves = node.leaves - left});
    if (sum.empty()) return right;
    for (size_t i = 0; i < right.size(); ++i) sum[i] += right[i];
    return sum;
  }

  std::vector<float> SumOfSamples(int64_t first, int64_t end) const {
    std::vector<float> sum(chunk_.elements());
    for (int64_t position = first; position < end; ++position) {
      const uint64_t seed = Mix(step_ * 1009 + position + 1);
      for (size_t i = 0; i < sum.size(); ++i) {
        const uint64_t element = chunk_.parameter() * 65'537 + chunk_.offset() + i;
        sum[i] += ValueOf(Mix(seed + element));
      }
    }
    return sum;
  }

  float ValueOf(uint64_t random) const {
    if (logical_ == 0) return static_cast<float>(static_cast<int>(random % 7) - 3);
    return static_cast<float>(static_cast<int32_t>(random)) * 0x1p-30f;
  }

  const v1::PlanChunk& chunk_;
  const int64_t step_;
  const int64_t batch_;
  const int64_t logical_;
};

}  // namespace

bool Trajectory::Has(const v1::PlanChunk& chunk, int64_t version, absl::Span<const float> values) {
  uint64_t hash = values.size();
  for (const float value : values) hash = Mix(hash ^ std::bit_cast<uint32_t>(value));
  const auto key = std::make_tuple(chunk.parameter(), chunk.offset(), version);
  if (!closed_) return hashes_.emplace(key, hash).first->second == hash;
  const auto known = hashes_.find(key);
  return known != hashes_.end() && known->second == hash;
}

std::vector<float> Trajectory::GradientOf(const v1::JobPlan& plan, int chunk, int64_t step,
                                          int rank) {
  return StepGradients(plan, chunk, step).SumOf(plan.workers(rank));
}

}  // namespace muster
