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

absl::StatusOr<std::unique_ptr<CudaBuckets>> CudaBuckets::Create(
    CudaDevice& device, const ExecutorPeers& peers, absl::Span<const DeviceValues> values) {
  auto buckets = absl::WrapUnique(new CudaBuckets(device, peers));
  buckets->value_layout_ = LayOutValues(*peers.layout, values, peers.communicator->world_size());
  // The mirrors have all parameters, so they have no slice.
  ASSIGN_OR_RETURN(buckets->values_, device.Mirror(peers.parameters, {}, cuda::Type::kF32,
                                                   buckets->value_layout_.bytes));
  ASSIGN_OR_RETURN(buckets->gradients_,
                   device.Mirror(peers.gradients, {}, cuda::Type::kF32,
                                 static_cast<int64_t>(Bytes(peers.layout->elements))));
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

std::shared_ptr<std::byte[]> CudaBuckets::values(int p) const {
  return {values_, values_.get() + value_layout_.offsets[p]};
}

std::shared_ptr<std::byte[]> CudaBuckets::gradients(int p) const {
  return {gradients_, gradients_.get() + Bytes(layout().offsets[p])};
}

// A bucket may have values of several types. A gather does not compute, so any type of which the
// slice has whole elements will do.
absl::Status CudaBuckets::Gather(int bucket) {
  const ValueLayout::Bucket& range = value_layout_.buckets[bucket];
  const int64_t length = range.bytes / BytesOf(CollectiveType::kF32);
  const TypedBuffer values(values_.get() + range.begin, length, CollectiveType::kF32);
  const int64_t each = length / peers_.communicator->world_size();
  RETURN_IF_ERROR(StatusOf(cudaEventRecord(uploaded_[bucket].get(), device_.upload())));
  RETURN_IF_ERROR(StatusOf(cudaStreamWaitEvent(collective(), uploaded_[bucket].get(), 0)));
  // The slice is at its place in the bucket, so the operation runs in place.
  return peers_.communicator->AllGather(
      TypedBuffer(values.at(peers_.communicator->rank() * each), each, values.type), values,
      collective());
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
  return communicator()->Await(absl::StrCat("the sum of bucket ", bucket),
                               [&] { return HasEnded(cudaEventQuery(delivered_[bucket].get())); });
}

}  // namespace muster
