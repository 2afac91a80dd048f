// The memory of batches that are read ahead.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Returns the bytes that batches may take which are read ahead: data.memory_bytes. By default a
// quarter of the memory that this process may use, at most 2 GiB. `root` is the folder that
// contains /proc and /sys, for tests.
int64_t InputMemoryBytes(const v1::DataSpec& data, const std::string& root = "");

struct InputNeed {
  int64_t batch_bytes = 0;       // of a worker's share of a batch
  int64_t evaluation_bytes = 0;  // of held-out samples that are read ahead
};

// Returns the number of batches for which there is memory, in 2..`most`. Returns
// RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED", if `memory_bytes` do not hold two.
absl::StatusOr<int> BatchesWithin(int64_t memory_bytes, const InputNeed& need, int most);

}  // namespace muster
