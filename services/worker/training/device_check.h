// Refuses devices on which a worker cannot train a job.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/worker/training/device_grid.h"

namespace muster {

struct UsedDevices {
  int cpus = 0;
  int gpus = 0;
  bool gpus_meet = false;  // in collective operations, through NCCL
};

// Returns the error for a worker with `devices` devices that cannot share a model as the job wants:
// UNIMPLEMENTED, reason "TENSOR_PARALLEL_DEVICES".
absl::Status TensorParallelRefused(const v1::JobPlan& plan, int64_t devices, absl::string_view why);

// Refuses a number of devices that cannot be divided into replicas (TensorParallelRefused()).
absl::Status CheckNumberOfDevices(const v1::JobPlan& plan, int64_t devices);

// Refuses ranks that are not alike, and several replicas of GPUs (TensorParallelRefused()). Refuses
// devices that cannot meet in the synchronised nodes of each run: UNIMPLEMENTED, reason
// "SYNCHRONISED_DEVICES".
absl::Status CheckDevices(const v1::JobPlan& plan, const DeviceGrid& grid,
                          const UsedDevices& devices);

// Returns the first node that is synchronised over the worker's devices, or null.
const v1::Node* SynchronisedNode(const v1::Graph& graph);

}  // namespace muster
