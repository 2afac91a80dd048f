#include "services/worker/training/device_grid.h"

#include <algorithm>

#include "lib/plan/batch_order.h"

namespace muster {
namespace {

int64_t LogicalWorkers(const v1::JobPlan& plan) {
  return plan.spec().resources().workers().logical();
}

SumNode NodeOf(const v1::JobPlan& plan, Rank worker) {
  const int64_t logical = LogicalWorkers(plan);
  const int64_t workers = plan.workers_size();
  return CutNode({.leaves = logical != 0 ? logical : workers}, workers)[ToInt(worker)];
}

// Cuts `range` into `parts` parts as PartOf() does, but only at multiples of `block` samples from
// its start.
SampleRange BlocksOf(SampleRange range, int64_t block, int index, int parts) {
  const SampleRange blocks = PartOf({0, (range.count + block - 1) / block}, index, parts);
  const int64_t begin = std::min(range.count, blocks.first * block);
  const int64_t end = std::min(range.count, (blocks.first + blocks.count) * block);
  return {range.first + begin, end - begin};
}

}  // namespace

SampleRange PartOf(SampleRange range, int index, int parts) {
  const int64_t each = range.count / parts;
  const int64_t larger = range.count % parts;  // number of parts with one more sample
  return {range.first + index * each + std::min<int64_t>(index, larger),
          each + (index < larger ? 1 : 0)};
}

std::vector<SampleRange> MicroBatchesOf(SampleRange share, int64_t limit, int replica,
                                        int replicas) {
  const SampleRange own = PartOf(share, replica, replicas);
  const int64_t largest = PartOf(share, /*index=*/0, replicas).count;
  const int64_t needed = limit == 0 ? 1 : (largest + limit - 1) / limit;
  const auto parts = static_cast<int>(std::min(needed, own.count));
  std::vector<SampleRange> cut;
  for (int part = 0; part < parts; ++part) cut.push_back(PartOf(own, part, parts));
  return cut;
}

DeviceGrid::DeviceGrid(const v1::JobPlan& plan, Rank worker, int64_t devices)
    : plan_(plan),
      worker_(worker),
      leaves_(NodeOf(plan, worker)),
      ranks_(std::max(1, plan.spec().resources().tensor_parallel())) {
  const int64_t logical = LogicalWorkers(plan);
  const int64_t samples = logical != 0 ? plan.spec().data().batch_size() / logical
                                       : plan.workers(ToInt(worker)).samples();
  replicas_ = static_cast<int>(std::min(devices / ranks_, samples));
}

std::vector<SampleRange> DeviceGrid::RunsOf(int replica) const {
  const v1::PlanWorker& self = plan_.workers(ToInt(worker_));
  const int64_t logical = LogicalWorkers(plan_);
  if (logical == 0) {
    return MicroBatchesOf({0, self.samples()}, plan_.spec().training().micro_batch_size(), replica,
                          replicas_);
  }
  std::vector<SampleRange> runs;
  for (const SumNode& leaf : LeavesOf(leaves_)) {
    const BatchShare share = ShareOfNode(plan_.spec().data().batch_size(), logical, leaf);
    runs.push_back(PartOf({share.first - self.first_position(), share.count}, replica, replicas_));
  }
  return runs;
}

// Returns the number of held-out samples of which a replica evaluates all or none. With logical
// workers these are as many as a replica trains on at once, so that each is always evaluated with
// the same others.
int64_t DeviceGrid::EvaluationBlock() const {
  const int64_t logical = LogicalWorkers(plan_);
  if (logical == 0) return 1;
  const int64_t leaf = (plan_.spec().data().batch_size() + logical - 1) / logical;
  return (leaf + replicas_ - 1) / replicas_;
}

SampleRange DeviceGrid::HeldOut(int64_t samples) const {
  return BlocksOf({0, samples}, EvaluationBlock(), ToInt(worker_), plan_.workers_size());
}

SampleRange DeviceGrid::HeldOutOf(int replica, int64_t samples) const {
  return BlocksOf(HeldOut(samples), EvaluationBlock(), replica, replicas_);
}

int64_t DeviceGrid::HeldOutAtOnce(int replica) const {
  if (LogicalWorkers(plan_) != 0) return EvaluationBlock();
  return std::ranges::max(RunsOf(replica), {}, &SampleRange::count).count;
}

}  // namespace muster
