#include "lib/engine/cuda/cuda_buckets.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "lib/engine/cuda/cuda_kernels.h"
#include "lib/status/status.h"

namespace muster {
namespace {

float* Floats(const std::shared_ptr<std::byte[]>& memory) {
  return reinterpret_cast<float*>(memory.get());
}

size_t Bytes(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }

}  // namespace

absl::StatusOr<std::unique_ptr<CudaBuckets>> CudaBuckets::Create(CudaDevice& device,
                                                                 const ExecutorPeers& peers) {
  auto buckets = absl::WrapUnique(new CudaBuckets(device, peers));
  const auto bytes = static_cast<int64_t>(Bytes(peers.layout->elements));
  ASSIGN_OR_RETURN(buckets->values_, device.Mirror(peers.parameters, cuda::Type::kF32, bytes));
  ASSIGN_OR_RETURN(buckets->gradients_, device.Mirror(peers.gradients, cuda::Type::kF32, bytes));
  for (size_t i = 0; i < peers.layout->buckets.size(); ++i) {
    ASSIGN_OR_RETURN(buckets->uploaded_.emplace_back(), CreateCudaEvent());
    ASSIGN_OR_RETURN(buckets->reduced_.emplace_back(), CreateCudaEvent());
    ASSIGN_OR_RETURN(buckets->delivered_.emplace_back(), CreateCudaEvent());
  }
  return buckets;
}

CudaBuckets::Range CudaBuckets::RangeOf(int bucket) const {
  const GradientBucket& range = layout().buckets[bucket];
  return {range.begin, range.end - range.begin};
}

CudaBuckets::Range CudaBuckets::SliceOf(int bucket) const {
  const auto [begin, length] = RangeOf(bucket);
  const int64_t slice = length / peers_.communicator->world_size();
  return {begin + peers_.communicator->rank() * slice, slice};
}

std::shared_ptr<std::byte[]> CudaBuckets::At(const std::shared_ptr<std::byte[]>& memory,
                                             int p) const {
  return {memory, memory.get() + Bytes(layout().offsets[p])};
}

absl::Status CudaBuckets::Gather(int bucket) {
  const auto [begin, length] = RangeOf(bucket);
  const auto [slice, slice_length] = SliceOf(bucket);
  float* values = Floats(values_);
  RETURN_IF_ERROR(
      StatusOf(cudaMemcpyAsync(values + slice, peers_.parameters + slice, Bytes(slice_length),
                               cudaMemcpyHostToDevice, device_.upload())));
  RETURN_IF_ERROR(StatusOf(cudaEventRecord(uploaded_[bucket].get(), device_.upload())));
  RETURN_IF_ERROR(StatusOf(cudaStreamWaitEvent(collective(), uploaded_[bucket].get(), 0)));
  // The slice is at its place in the bucket, so the operation runs in place.
  return peers_.communicator->AllGather(absl::MakeConstSpan(values + slice, slice_length),
                                        absl::MakeSpan(values + begin, length), collective());
}

absl::Status CudaBuckets::Reduce(int bucket, cudaEvent_t computed) {
  const auto [begin, length] = RangeOf(bucket);
  const auto [slice, slice_length] = SliceOf(bucket);
  float* gradients = Floats(gradients_);
  RETURN_IF_ERROR(StatusOf(cudaStreamWaitEvent(collective(), computed, 0)));
  RETURN_IF_ERROR(peers_.communicator->ReduceScatter(
      absl::MakeConstSpan(gradients + begin, length),
      absl::MakeSpan(gradients + slice, slice_length), collective()));
  RETURN_IF_ERROR(StatusOf(cudaEventRecord(reduced_[bucket].get(), collective())));
  RETURN_IF_ERROR(StatusOf(cudaStreamWaitEvent(device_.download(), reduced_[bucket].get(), 0)));
  RETURN_IF_ERROR(
      StatusOf(cudaMemcpyAsync(peers_.gradients + slice, gradients + slice, Bytes(slice_length),
                               cudaMemcpyDeviceToHost, device_.download())));
  return StatusOf(cudaEventRecord(delivered_[bucket].get(), device_.download()));
}

absl::Status CudaBuckets::AwaitSlice(int bucket) {
  return Await(absl::StrCat("the sum of bucket ", bucket),
               [&] { return HasEnded(cudaEventQuery(delivered_[bucket].get())); });
}

}  // namespace muster
