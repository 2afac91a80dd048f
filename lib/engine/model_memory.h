// Parameters, gradients and inputs of a graph, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

class ModelMemory {
 public:
  // Parameters hold their initial values for `seed`; gradients hold NaN. Returns the errors of
  // Device::Allocate.
  static absl::StatusOr<std::unique_ptr<ModelMemory>> Create(const v1::Graph& graph, Device& device,
                                                             uint64_t seed);

  // Like Create(), but dies if there is not enough memory: for tests.
  ModelMemory(const v1::Graph& graph, Device& device, uint64_t seed);

  absl::Span<float* const> parameters() const { return parameters_; }
  absl::Span<float* const> gradients() const { return gradients_; }  // empty: not differentiated
  absl::Span<float> parameter(int p) const { return {parameters_[p], elements_[p]}; }
  absl::Span<float> gradient(int p) const { return {gradients_[p], elements_[p]}; }

 private:
  ModelMemory() = default;
  absl::Status Fill(const v1::Graph& graph, Device& device, uint64_t seed);

  std::vector<Device::Memory> memory_;
  std::vector<float*> parameters_;
  std::vector<float*> gradients_;
  std::vector<size_t> elements_;
};

// Fills every input: f32 with standard normal numbers, i32 with ids in [0, ids_max).
void FillInputs(const v1::Graph& graph, int64_t ids_max, uint64_t seed, Executor& executor);

}  // namespace muster
