// Memory for one tensor per parameter of a model, in one piece.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "lib/engine/device.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// f32[elements] of every parameter, each 64-byte aligned, zeroed, on one device, registered with
// the transport as a whole. The tensors point into it and move with it.
class TensorSlab {
 public:
  TensorSlab(Device& device, const v1::Graph& graph);

  absl::Span<std::byte> memory() const { return {memory_.get(), bytes_}; }
  const std::vector<absl::Span<float>>& tensors() const { return tensors_; }  // by parameter
  std::vector<float*> pointers() const;

 private:
  size_t bytes_ = 0;
  Device::Memory memory_;
  std::vector<absl::Span<float>> tensors_;
};

}  // namespace muster
