// Parameters, gradients and inputs of a graph, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

class ModelMemory {
 public:
  // Parameters hold their initial values for `seed`; gradients hold NaN.
  ModelMemory(const v1::Graph& graph, Device& device, uint64_t seed);

  absl::Span<float* const> parameters() const { return parameters_; }
  absl::Span<float* const> gradients() const { return gradients_; }  // empty: not differentiated
  absl::Span<float> parameter(int p) const { return {parameters_[p], elements_[p]}; }
  absl::Span<float> gradient(int p) const { return {gradients_[p], elements_[p]}; }

 private:
  std::vector<Device::Memory> memory_;
  std::vector<float*> parameters_;
  std::vector<float*> gradients_;
  std::vector<size_t> elements_;
};

// Fills every input: standard normal numbers, ids in [0, ids_max).
void FillInputs(const v1::Graph& graph, int64_t ids_max, uint64_t seed, Executor& executor);

}  // namespace muster
