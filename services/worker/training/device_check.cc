#include "services/worker/training/device_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {
namespace {

absl::Status CheckRanks(const v1::JobPlan& plan, const DeviceGrid& grid,
                        const UsedDevices& devices) {
  if (grid.ranks() == 1) return absl::OkStatus();
  if (devices.gpus == 0 || (devices.cpus == 0 && grid.replicas() == 1)) return absl::OkStatus();
  return TensorParallelRefused(plan, grid.devices(),
                               devices.cpus > 0
                                   ? "they must be CPUs alone or GPUs alone"
                                   : "with GPUs it must be equal to their number; start one worker "
                                     "for each group of GPUs");
}

absl::Status CheckSynchronised(const v1::JobPlan& plan, const DeviceGrid& grid,
                               const UsedDevices& devices) {
  const v1::Node* const node = SynchronisedNode(plan.graph());
  if (grid.replicas() == 1 || node == nullptr) return absl::OkStatus();
  const auto refused = [&](const auto&... why) {
    return WithReason(absl::UnimplementedError(absl::StrCat(
                          "node '", node->name(), "' (", node->op(), ") is synchronised over the ",
                          grid.devices(), " devices of this worker, ", why...)),
                      "SYNCHRONISED_DEVICES");
  };
  if (devices.gpus > 0 && !devices.gpus_meet) {
    return refused("which are neither CPUs alone nor GPUs with NCCL; give the worker one device, ",
                   "or use more workers");
  }
  // A replica with fewer samples than another has fewer micro-batches if each has one sample.
  if (grid.RunsOf(0).size() != grid.RunsOf(grid.replicas() - 1).size()) {
    return refused("which have unequal numbers of micro-batches; set training.micro_batch_size to ",
                   "at least 2");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TensorParallelRefused(const v1::JobPlan& plan, int64_t devices,
                                   absl::string_view why) {
  return WithReason(
      absl::UnimplementedError(absl::StrCat(
          "resources.tensor_parallel is ", plan.spec().resources().tensor_parallel(),
          " and this worker has ", devices, devices == 1 ? " device: " : " devices: ", why)),
      "TENSOR_PARALLEL_DEVICES");
}

absl::Status CheckNumberOfDevices(const v1::JobPlan& plan, int64_t devices) {
  const int degree = std::max(1, plan.spec().resources().tensor_parallel());
  if (devices > 0 && devices % degree == 0) return absl::OkStatus();
  return TensorParallelRefused(plan, devices,
                               absl::StrCat("give it a multiple of that number (--devices=cpu:",
                                            degree, "), or as many GPUs"));
}

absl::Status CheckDevices(const v1::JobPlan& plan, const DeviceGrid& grid,
                          const UsedDevices& devices) {
  if (absl::Status ranks = CheckRanks(plan, grid, devices); !ranks.ok()) return ranks;
  return CheckSynchronised(plan, grid, devices);
}

const v1::Node* SynchronisedNode(const v1::Graph& graph) {
  for (const v1::Node& node : graph.nodes()) {
    const auto synchronised = node.attributes().find("synchronised");
    if (synchronised != node.attributes().end() && synchronised->second.i() != 0) return &node;
  }
  return nullptr;
}

}  // namespace muster
