// What a GPU has in common with the other GPUs of its worker: gradients that they sum and values
// that they pass around, a bucket at a time.
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

// Gradients and values of all parameters in f32 on the device, laid out as on the host, so that a
// bucket is one piece and a gradient a view into it. All executors of a device share the memory.
//
// Collective operations run in a stream of their own, in the order of the calls; all devices make
// the same calls in the same order. Thread-compatible: on the thread that drives the device.
class CudaBuckets {
 public:
  static absl::StatusOr<std::unique_ptr<CudaBuckets>> Create(CudaDevice& device,
                                                             const ExecutorPeers& peers);

  const GradientLayout& layout() const { return *peers_.layout; }
  // Of parameter `p`, f32, in memory that lives as long as the pointer.
  std::shared_ptr<std::byte[]> values(int p) const { return At(values_, p); }
  std::shared_ptr<std::byte[]> gradients(int p) const { return At(gradients_, p); }

  // Enqueues: the device's slice of the bucket's values comes up from the host, and the slices of
  // all devices are gathered. Finished in stream collective().
  absl::Status Gather(int bucket);

  // Enqueues, after `computed`: the bucket's gradients are summed over all devices, and the
  // device's slice goes down to the host.
  absl::Status Reduce(int bucket, cudaEvent_t computed);

  // Blocks until the slice of the last Reduce() of `bucket` is on the host, or a device fails.
  absl::Status AwaitSlice(int bucket);

  // Likewise until `finished`, which may be behind a collective operation: `what` names it.
  absl::Status Await(absl::string_view what,
                     absl::FunctionRef<absl::StatusOr<bool>()> finished) const {
    return peers_.communicator->Await(what, finished);
  }

  cudaStream_t collective() const { return device_.collective(); }
  // Ends all collective operations of this device, and those of its peers.
  void Leave(absl::Status why) { peers_.communicator->Leave(std::move(why)); }

 private:
  CudaBuckets(CudaDevice& device, const ExecutorPeers& peers) : device_(device), peers_(peers) {}

  struct Range {  // floats
    int64_t begin;
    int64_t length;
  };
  Range RangeOf(int bucket) const;
  Range SliceOf(int bucket) const;  // this device's
  std::shared_ptr<std::byte[]> At(const std::shared_ptr<std::byte[]>& memory, int p) const;

  CudaDevice& device_;
  const ExecutorPeers peers_;
  std::shared_ptr<std::byte[]> values_, gradients_;
  std::vector<CudaEvent> uploaded_, reduced_, delivered_;  // by bucket
};

}  // namespace muster
