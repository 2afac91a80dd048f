#include "services/worker/training/tensor_slab.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "glog/logging.h"
#include "lib/engine/host_memory.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"
#include "lib/transport/core/shared_slab.h"

namespace muster {
namespace {

absl::StatusOr<std::shared_ptr<void>> AllocatePageLocked(Device& device, size_t bytes,
                                                         absl::Span<std::byte>& memory) {
  ASSIGN_OR_RETURN(Device::Memory allocated, device.Allocate(bytes, "parameters or gradients"));
  memory = {allocated.get(), bytes};
  return std::shared_ptr<std::byte[]>(std::move(allocated));
}

absl::Status Exhausted(size_t bytes) {
  return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                        "the model's parameters need ", bytes, " bytes, and so do their ",
                        "gradients; this host has ", AvailableHostBytes(),
                        " left: use fewer parameters or a machine with more memory")),
                    "MEMORY_EXHAUSTED");
}

// Members are destroyed in reverse order, so the pages are unlocked before the slab is freed.
struct LockedSlab {
  std::shared_ptr<SharedSlab> slab;
  std::shared_ptr<void> lock;
};

absl::StatusOr<std::shared_ptr<void>> AllocateShared(Device& device, size_t bytes,
                                                     absl::Span<std::byte>& memory) {
  ASSIGN_OR_RETURN(std::shared_ptr<SharedSlab> slab,
                   AllocateBackedSlab(bytes, SealedMemory::Others::kRead));
  absl::StatusOr<std::shared_ptr<void>> lock = device.PageLock(slab->memory());
  if (!lock.ok()) {
    LOG(WARNING) << device.name() << ": shared memory cannot be page-locked, so gradients are "
                 << "copied on their way to ps of this host: " << lock.status();
    slab.reset();  // frees the memory before allocating the same amount again
    return AllocatePageLocked(device, bytes, memory);
  }
  memory = slab->memory();
  return std::make_shared<LockedSlab>(LockedSlab{std::move(slab), *std::move(lock)});
}

}  // namespace

// The kernel may grant an allocation that it cannot back when the pages are first touched. So this
// checks the available memory, allocates and touches all pages. Untouched memory still counts as
// available; the mutex keeps concurrent calls from relying on the same memory.
absl::StatusOr<std::shared_ptr<SharedSlab>> AllocateBackedSlab(size_t bytes,
                                                               SealedMemory::Others others) {
  ABSL_CONST_INIT static absl::Mutex mu(absl::kConstInit);
  absl::MutexLock lock(&mu);
  if (bytes > static_cast<size_t>(AvailableHostBytes())) return Exhausted(bytes);
  absl::StatusOr<std::shared_ptr<SharedSlab>> slab =
      SharedSlab::Allocate(static_cast<int64_t>(bytes), others);
  if (!slab.ok()) return Exhausted(bytes);
  std::memset((*slab)->memory().data(), 0, (*slab)->memory().size());
  return slab;
}

absl::StatusOr<std::unique_ptr<TensorSlab>> TensorSlab::Create(Device& device,
                                                               const v1::Graph& graph,
                                                               const GradientLayout& layout) {
  const auto bytes = static_cast<size_t>(layout.elements) * sizeof(float);
  absl::Span<std::byte> memory;
  ASSIGN_OR_RETURN(std::shared_ptr<void> owner, AllocateShared(device, bytes, memory));
  return absl::WrapUnique(new TensorSlab(std::move(owner), memory, graph, layout));
}

TensorSlab::TensorSlab(std::shared_ptr<void> owner, absl::Span<std::byte> memory,
                       const v1::Graph& graph, const GradientLayout& layout)
    : owner_(std::move(owner)), memory_(memory) {
  for (int p = 0; p < graph.parameters_size(); ++p) {
    tensors_.emplace_back(base() + layout.offsets[p],
                          static_cast<size_t>(ElementCount(graph.parameters(p))));
  }
}

std::vector<float*> TensorSlab::pointers() const {
  std::vector<float*> pointers;
  for (absl::Span<float> tensor : tensors_) pointers.push_back(tensor.data());
  return pointers;
}

}  // namespace muster
