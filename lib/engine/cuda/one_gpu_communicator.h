// Several ranks of a group on one GPU, which NCCL refuses to make. For tests.
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/conversion.h"
#include "lib/collective/communicator.h"
#include "lib/status/status.h"

namespace muster {

// The ranks are threads that meet in `meeting`, a rank of a SharedMemoryGroup. Operations are
// finished when they return. Sums are added on the host, in rank order and in f32.
class OneGpuCommunicator : public Communicator {
 public:
  explicit OneGpuCommunicator(std::unique_ptr<Communicator> meeting)
      : meeting_(std::move(meeting)) {}

  int rank() const override { return meeting_->rank(); }
  int world_size() const override { return meeting_->world_size(); }

  absl::Status AllReduce(TypedBuffer data, CollectiveStream stream) override {
    return Sum(data, /*first=*/0, data, stream);
  }

  absl::Status ReduceScatter(ConstTypedBuffer data, TypedBuffer slice,
                             CollectiveStream stream) override {
    return Sum(data, rank() * slice.elements, slice, stream);
  }

  absl::Status AllGather(ConstTypedBuffer slice, TypedBuffer data,
                         CollectiveStream stream) override {
    ASSIGN_OR_RETURN(const auto all, Meet(slice.data, stream));
    for (int other = 0; other < world_size(); ++other) {
      if (other == rank()) continue;
      RETURN_IF_ERROR(Copy(data.at(other * slice.elements), all[other], slice.bytes(), stream));
    }
    return Meet(slice.data, stream).status();
  }

  absl::Status Broadcast(TypedBuffer, int, CollectiveStream) override {
    return absl::UnimplementedError("not of use to an executor");
  }
  absl::Status Await(absl::string_view what,
                     absl::FunctionRef<absl::StatusOr<bool>()> finished) override {
    return meeting_->Await(what, finished);
  }
  void Abort(absl::Status why) override { meeting_->Abort(std::move(why)); }

 private:
  static absl::Status StatusOf(cudaError_t error) {
    if (error == cudaSuccess) return absl::OkStatus();
    return absl::InternalError(cudaGetErrorString(error));
  }

  static absl::Status Copy(void* to, const void* from, int64_t bytes, CollectiveStream on) {
    const auto stream = static_cast<cudaStream_t>(on);
    RETURN_IF_ERROR(
        StatusOf(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream)));
    return StatusOf(cudaStreamSynchronize(stream));
  }

  static kernels::ElementType ElementOf(CollectiveType type) {
    if (type == CollectiveType::kBf16) return kernels::ElementType::kBf16;
    return type == CollectiveType::kF16 ? kernels::ElementType::kF16 : kernels::ElementType::kF32;
  }

  // sum = the sum of the ranks' elements from `first` on.
  absl::Status Sum(ConstTypedBuffer data, int64_t first, TypedBuffer sum, CollectiveStream stream) {
    ASSIGN_OR_RETURN(const auto all, Meet(data.data, stream));
    const kernels::ElementType type = ElementOf(data.type);
    std::vector<std::byte> raw(sum.bytes());
    std::vector<float> total(sum.elements), term(sum.elements);
    for (const void* other : all) {
      const auto* from = static_cast<const std::byte*>(other) + first * BytesOf(data.type);
      RETURN_IF_ERROR(Copy(raw.data(), from, sum.bytes(), stream));
      kernels::Convert(term.data(), kernels::ElementType::kF32, raw.data(), type, sum.elements);
      for (size_t i = 0; i < total.size(); ++i) total[i] += term[i];
    }
    RETURN_IF_ERROR(Meet(data.data, stream).status());  // all have read what this rank overwrites
    kernels::Convert(raw.data(), type, total.data(), kernels::ElementType::kF32, sum.elements);
    return Copy(sum.data, raw.data(), sum.bytes(), stream);
  }

  // Waits for the stream and for the other ranks. Returns the addresses that the ranks gave.
  absl::StatusOr<std::vector<const void*>> Meet(const void* address, CollectiveStream stream) {
    RETURN_IF_ERROR(StatusOf(cudaStreamSynchronize(static_cast<cudaStream_t>(stream))));
    const auto own = std::bit_cast<double>(address);
    std::vector<double> all(world_size());
    RETURN_IF_ERROR(meeting_->AllGather(absl::MakeConstSpan(&own, 1),
                                        absl::MakeSpan(all.data(), all.size()), nullptr));
    std::vector<const void*> addresses;
    for (const double other : all) addresses.push_back(std::bit_cast<const void*>(other));
    return addresses;
  }

  const std::unique_ptr<Communicator> meeting_;
};

}  // namespace muster
