// Memory for one tensor per parameter of a model, in one piece.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/collective/gradient_layout.h"
#include "lib/engine/device.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// f32[elements] of every parameter, each 64-byte aligned, zeroed, registered with the transport as
// a whole. The tensors point into it, where the layout says. It is a SharedSlab, so that members on
// this host read it without a copy; for a GPU it is page-locked too.
class TensorSlab {
 public:
  // RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED", when the host has not that much.
  static absl::StatusOr<std::unique_ptr<TensorSlab>> Create(Device& device, const v1::Graph& graph,
                                                            const GradientLayout& layout);

  absl::Span<std::byte> memory() const { return memory_; }
  const std::vector<absl::Span<float>>& tensors() const { return tensors_; }  // by parameter
  std::vector<float*> pointers() const;
  float* base() const { return reinterpret_cast<float*>(memory_.data()); }

 private:
  TensorSlab(std::shared_ptr<void> owner, absl::Span<std::byte> memory, const v1::Graph& graph,
             const GradientLayout& layout);

  const std::shared_ptr<void> owner_;  // of the memory
  const absl::Span<std::byte> memory_;
  std::vector<absl::Span<float>> tensors_;
};

}  // namespace muster
