#include "services/worker/tensor_slab.h"

#include <cstdint>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/cluster/parameter_table.h"
#include "lib/status/status.h"

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

absl::StatusOr<std::unique_ptr<TensorSlab>> TensorSlab::Create(Device& device,
                                                               const v1::Graph& graph) {
  const size_t bytes = SlabBytes(graph);
  Device::Memory memory = device.Allocate(bytes);
  if (memory == nullptr) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                          "the model's parameters need ", bytes, " bytes, and so do their ",
                          "gradients; device '", device.name(), "' has ", device.available_bytes(),
                          " left: use fewer parameters or a machine with more memory")),
                      "MEMORY_EXHAUSTED");
  }
  return absl::WrapUnique(new TensorSlab(std::move(memory), bytes, graph));
}

TensorSlab::TensorSlab(Device::Memory memory, size_t bytes, const v1::Graph& graph)
    : memory_(std::move(memory)), bytes_(bytes) {
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
