// State that a GPU shares with the other GPUs of its worker: the gradients that they sum and the
// values that they exchange, one bucket at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/engine/cuda/cuda_device.h"
#include "lib/engine/cuda/cuda_handles.h"
#include "lib/engine/executor.h"

namespace muster {

// Gradients and values of all parameters in f32 on the device. They have the same layout as on the
// host, so a bucket is one block and a gradient is a view into it. All executors of a device share
// the memory.
//
// Collective operations run in their own stream, in the order of the calls. All devices must make
// the same calls in the same order. Thread-compatible: called on the thread that drives the device.
class CudaBuckets {
 public:
  static absl::StatusOr<std::unique_ptr<CudaBuckets>> Create(CudaDevice& device,
                                                             const ExecutorPeers& peers);

  const GradientLayout& layout() const { return *peers_.layout; }
  // Return the f32 values and gradients of parameter `p`. The memory lives as long as the pointer.
  std::shared_ptr<std::byte[]> values(int p) const { return At(values_, p); }
  std::shared_ptr<std::byte[]> gradients(int p) const { return At(gradients_, p); }

  // Enqueues: uploads the device's slice of the bucket's values from the host, then gathers the
  // slices of all devices. Completes in the stream collective().
  absl::Status Gather(int bucket);

  // Enqueues, after `computed`: sums the bucket's gradients over all devices, then downloads the
  // device's slice to the host.
  absl::Status Reduce(int bucket, cudaEvent_t computed);

  // Blocks until the slice of the last Reduce() of `bucket` is on the host, or a device fails.
  absl::Status AwaitSlice(int bucket);

  // Blocks until `finished` returns true, or a device fails. `finished` may depend on a collective
  // operation. `what` names the awaited work in errors.
  absl::Status Await(absl::string_view what,
                     absl::FunctionRef<absl::StatusOr<bool>()> finished) const {
    return peers_.communicator->Await(what, finished);
  }

  cudaStream_t collective() const { return device_.collective(); }
  // Aborts all collective operations of this device and of its peers.
  void Leave(absl::Status why) { peers_.communicator->Leave(std::move(why)); }

 private:
  CudaBuckets(CudaDevice& device, const ExecutorPeers& peers) : device_(device), peers_(peers) {}

  struct Range {  // in floats
    int64_t begin;
    int64_t length;
  };
  Range RangeOf(int bucket) const;
  Range SliceOf(int bucket) const;  // this device's slice
  std::shared_ptr<std::byte[]> At(const std::shared_ptr<std::byte[]>& memory, int p) const;

  CudaDevice& device_;
  const ExecutorPeers peers_;
  std::shared_ptr<std::byte[]> values_, gradients_;
  std::vector<CudaEvent> uploaded_, reduced_, delivered_;  // one per bucket
};

}  // namespace muster
