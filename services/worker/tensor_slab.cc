#include "services/worker/tensor_slab.h"

#include <cstdint>

#include "lib/cluster/parameter_table.h"

namespace muster {
namespace {

constexpr size_t kAlignment = 64;

size_t PaddedBytes(const v1::Parameter& parameter) {
  const size_t bytes = static_cast<size_t>(ElementCount(parameter)) * sizeof(float);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

size_t SlabBytes(const v1::Graph& graph) {
  size_t bytes = 0;
  for (const v1::Parameter& parameter : graph.parameters()) bytes += PaddedBytes(parameter);
  return bytes;
}

}  // namespace

TensorSlab::TensorSlab(Device& device, const v1::Graph& graph)
    : bytes_(SlabBytes(graph)), memory_(device.Allocate(bytes_)) {
  size_t offset = 0;
  for (const v1::Parameter& parameter : graph.parameters()) {
    tensors_.emplace_back(reinterpret_cast<float*>(memory_.get() + offset),
                          static_cast<size_t>(ElementCount(parameter)));
    offset += PaddedBytes(parameter);
  }
}

std::vector<float*> TensorSlab::pointers() const {
  std::vector<float*> pointers;
  for (absl::Span<float> tensor : tensors_) pointers.push_back(tensor.data());
  return pointers;
}

}  // namespace muster
