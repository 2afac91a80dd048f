// State that a GPU shares with the other GPUs of its worker: the gradients that they sum and the
// values that they exchange, one bucket at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/collective/value_layout.h"
#include "lib/engine/cuda/cuda_device.h"
#include "lib/engine/cuda/cuda_handles.h"
#include "lib/engine/executor.h"

namespace muster {

// Gradients of all parameters in f32 on the device, and values in the type of the computation: 6
// bytes for each parameter that is computed in 16 bits. Gradients have the same layout as on the
// host. A bucket of either is one block, and its tensors are views into it. All executors of a
// device share the memory.
//
// Collective operations run in their own stream, in the order of the calls. All devices must make
// the same calls in the same order. Thread-compatible: called on the thread that drives the device.
class CudaBuckets {
 public:
  // `values`: what the device computes with, one for each parameter. Equal on all peers.
  static absl::StatusOr<std::unique_ptr<CudaBuckets>> Create(CudaDevice& device,
                                                             const ExecutorPeers& peers,
                                                             absl::Span<const DeviceValues> values);

  const GradientLayout& layout() const { return *peers_.layout; }
  // Return the values and the f32 gradients of parameter `p`. The memory lives as long as the
  // pointer. Padding of the values is zero.
  std::shared_ptr<std::byte[]> values(int p) const;
  std::shared_ptr<std::byte[]> gradients(int p) const;

  // Returns the values of the bucket that this device uploads from the host.
  absl::Span<const ValueRange> slice(int bucket) const {
    return value_layout_.buckets[bucket].slices[peers_.communicator->rank()];
  }
  // Enqueues, after all work in the stream upload(): gathers the values of all devices' slices.
  // Completes in the stream collective().
  absl::Status Gather(int bucket);

  // Enqueues, after `computed`: sums the bucket's gradients over all devices, then downloads the
  // device's slice to the host.
  absl::Status Reduce(int bucket, cudaEvent_t computed);

  // Blocks until the slice of the last Reduce() of `bucket` is on the host, or a device fails.
  absl::Status AwaitSlice(int bucket);

  cudaStream_t collective() const { return device_.collective(); }
  Communicator* communicator() const { return peers_.communicator; }  // this device's rank

 private:
  CudaBuckets(CudaDevice& device, const ExecutorPeers& peers) : device_(device), peers_(peers) {}

  struct Range {  // in floats
    int64_t begin;
    int64_t length;
  };
  Range RangeOf(int bucket) const;
  Range SliceOf(int bucket) const;  // this device's slice

  CudaDevice& device_;
  const ExecutorPeers peers_;
  ValueLayout value_layout_;
  std::shared_ptr<std::byte[]> values_, gradients_;
  std::vector<CudaEvent> uploaded_, reduced_, delivered_;  // one per bucket
};

}  // namespace muster
