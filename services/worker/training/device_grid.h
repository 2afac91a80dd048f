// Divides a worker's samples among its devices.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/graph/tensor_parallel/placement.h"
#include "lib/plan/numbers.h"
#include "lib/plan/sum_tree.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// The contiguous range [first, first + count).
struct SampleRange {
  int64_t first = 0;
  int64_t count = 0;

  friend bool operator==(const SampleRange&, const SampleRange&) = default;
};

// Returns part `index` of `range`, cut into `parts` as evenly as possible, larger parts first.
SampleRange PartOf(SampleRange range, int index, int parts);

// Returns the micro-batches of one of `replicas` replicas, which computes its PartOf() `share`. A
// micro-batch has at most `limit` samples; limit 0: all. Every replica has as many micro-batches as
// the replica with the largest part needs, or one for each of its samples if it has fewer of them.
std::vector<SampleRange> MicroBatchesOf(SampleRange share, int64_t limit, int replica,
                                        int replicas);

// A worker's devices are replicas of the model. Each replica computes its own samples. With
// resources.tensor_parallel a replica is a group of consecutive devices, its ranks: they compute
// the same samples, each with its part of the model. Immutable.
class DeviceGrid {
 public:
  // `devices`: those that the worker has. If the smallest leaf has fewer samples than there are
  // replicas, the others stay idle. With logical workers all workers use equally many. The plan
  // outlives the grid.
  DeviceGrid(const v1::JobPlan& plan, Rank worker, int64_t devices);

  int replicas() const { return replicas_; }
  int ranks() const { return ranks_; }
  int devices() const { return replicas_ * ranks_; }  // in use
  int replica_of(int device) const { return device / ranks_; }
  TensorParallel rank_of(int device) const { return {.degree = ranks_, .rank = device % ranks_}; }
  int first_device(int replica) const { return replica * ranks_; }

  // The leaves of the sum tree that the worker computes: one, unless the job has logical workers.
  SumNode leaves() const { return leaves_; }

  // Returns the samples of the worker's share that the replica computes, run by run: its part of
  // each leaf, or of the whole share in micro-batches.
  std::vector<SampleRange> RunsOf(int replica) const;

  // Returns the part of `samples` held-out samples that the worker evaluates, or the replica.
  SampleRange HeldOut(int64_t samples) const;
  SampleRange HeldOutOf(int replica, int64_t samples) const;
  // Returns the largest number of held-out samples that the replica evaluates at once.
  int64_t HeldOutAtOnce(int replica) const;

 private:
  int64_t EvaluationBlock() const;

  const v1::JobPlan& plan_;
  const Rank worker_;
  const SumNode leaves_;
  int ranks_ = 1;
  int replicas_ = 1;
};

}  // namespace muster
