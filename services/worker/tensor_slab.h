// Memory for one tensor per parameter of a model, in one piece.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/engine/device.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// f32[elements] of every parameter, each 64-byte aligned, zeroed, on one device, registered with
// the transport as a whole. The tensors point into it.
class TensorSlab {
 public:
  // RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED", when the device has not that much.
  static absl::StatusOr<std::unique_ptr<TensorSlab>> Create(Device& device, const v1::Graph& graph);

  absl::Span<std::byte> memory() const { return {memory_.get(), bytes_}; }
  const std::vector<absl::Span<float>>& tensors() const { return tensors_; }  // by parameter
  std::vector<float*> pointers() const;

 private:
  TensorSlab(Device::Memory memory, size_t bytes, const v1::Graph& graph);

  const Device::Memory memory_;
  const size_t bytes_;
  std::vector<absl::Span<float>> tensors_;
};

}  // namespace muster
