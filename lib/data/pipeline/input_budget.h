// Chooses what reading ahead may take: memory, batches and priority.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "lib/data/dataset.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// The memory of batches that are read ahead.
struct InputMemory {
  int64_t bytes = 0;
  bool is_default = false;  // data.memory_bytes is absent
};

// Returns data.memory_bytes. By default a quarter of the memory that this process may use, at most
// 2 GiB. `root` is the folder that contains /proc and /sys, for tests.
InputMemory InputMemoryOf(const v1::DataSpec& data, const std::string& root = "");

// Returns DataOptions::block_bytes_max of a job: half as much memory as batches may take.
int64_t BlockBytesMax(const v1::DataSpec& data);

// Returns the most buffers for batches, including the one in use. `samples` is the worker's share
// of a batch. Slow samples take unequal times, so enough of them are read ahead to even these out.
// Requires: samples >= 1.
int BatchesAhead(const Dataset& dataset, int64_t samples);

// Returns the nice value of threads that read beside a CPU device. Threads that decode must not
// take the device's cores while it has a batch to compute.
int NiceBesideCpu(const Dataset& dataset);

struct InputNeed {
  int64_t batch_bytes = 0;       // of a worker's share of a batch
  int64_t evaluation_bytes = 0;  // of held-out samples that are read ahead
};

// Returns the number of batches for which there is memory, in 2..`most`. If there is none for two,
// logs a warning and returns 2 if the memory is the default. Otherwise returns RESOURCE_EXHAUSTED,
// reason "MEMORY_EXHAUSTED".
absl::StatusOr<int> BatchesWithin(const InputMemory& memory, const InputNeed& need, int most);

}  // namespace muster
