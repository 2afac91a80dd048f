// Element types of device tensors, and what differs from run to run.
#pragma once

#include <cstdint>

namespace muster::kernels::cuda {

enum class Type { kF32, kBf16, kF16, kI32 };

inline int64_t Bytes(Type type) { return type == Type::kF32 || type == Type::kI32 ? 4 : 2; }

// What becomes of gradients at the end of a run: those of the first micro-batch of a step are
// assigned, the others added, none are left where the run is only to warm up.
enum class Export : int32_t { kAssign, kAdd, kNone };

// Lies on the device and is written before a run, so that kernels enqueued once (a CUDA graph) see
// each run's numbers.
struct RunNumbers {
  float loss_scale;
  int64_t samples;         // of this run
  int64_t batch;           // of the global batch
  int64_t first_position;  // of this run's first sample in the global batch
  uint64_t seed;
  int64_t step;
  Export gradients;
};

}  // namespace muster::kernels::cuda
