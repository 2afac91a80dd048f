// One contiguous block of memory with a tensor for every parameter of a model.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/collective/gradient_layout.h"
#include "lib/engine/device.h"
#include "lib/transport/core/sealed_memory.h"
#include "lib/transport/core/shared_slab.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Allocates a slab and backs all of its pages. Returns RESOURCE_EXHAUSTED, reason
// "MEMORY_EXHAUSTED", if the host has too little memory. Thread-safe.
absl::StatusOr<std::shared_ptr<SharedSlab>> AllocateBackedSlab(size_t bytes,
                                                               SealedMemory::Others others);

// Holds f32[elements] for every parameter, 64-byte aligned and zeroed, at the offsets of the
// layout. The transport registers the block as a whole. The block is a SharedSlab, so members on
// this host read it without a copy. For a GPU it is also page-locked. If page-locking a SharedSlab
// fails, the block is page-locked memory that is not shared.
class TensorSlab {
 public:
  // Returns RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED", if the host has too little memory.
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
