// Element types of device tensors, and the numbers that change from run to run.
#pragma once

#include <cstdint>

namespace muster::kernels::cuda {

enum class Type { kF32, kBf16, kF16, kI32 };

inline int64_t Bytes(Type type) { return type == Type::kF32 || type == Type::kI32 ? 4 : 2; }

// How a run exports its gradients at its end. The first micro-batch of a step assigns them, later
// ones add them, and a run that only warms up leaves them.
enum class Export : int32_t { kAssign, kAdd, kNone };

// These numbers are in device memory and written before a run, so that kernels enqueued once (a
// CUDA graph) use each run's numbers.
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
