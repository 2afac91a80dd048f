// Tests NCCL with two ranks on one GPU.
#include "lib/collective/nccl_communicator.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/collective/two_processes.h"
#include "lib/status/status.h"

namespace muster::nccl_communicator_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kRanks = 2;
constexpr int64_t kEach = 10'007;

std::string WhyNoGpu() {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess) return cudaGetErrorString(found);
  return count == 0 ? "no GPU" : "";
}

template <typename T>
class DeviceMemory {
 public:
  explicit DeviceMemory(const std::vector<T>& values) : size_(values.size()) {
    CHECK_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), size_ * sizeof(T)), cudaSuccess);
    CHECK_EQ(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
             cudaSuccess);
  }
  ~DeviceMemory() { cudaFree(data_); }
  absl::Span<T> span() { return {data_, size_}; }
  std::vector<T> Read() const {
    std::vector<T> values(size_);
    CHECK_EQ(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
             cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  const size_t size_;
};

std::function<absl::StatusOr<bool>()> AtEndOf(cudaStream_t stream) {
  return [stream]() -> absl::StatusOr<bool> {
    const cudaError_t error = cudaStreamQuery(stream);
    if (error == cudaSuccess || error == cudaErrorNotReady) return error == cudaSuccess;
    return absl::InternalError(cudaGetErrorString(error));
  };
}

// Runs every operation once, on integers, so that sums are exact. Returns "" or a description of
// the fault.
std::string RunRank(NcclGroup& group, int rank) {
  auto joined = group.Join(rank);
  if (!joined.ok()) return std::string(joined.status().message());
  Communicator& communicator = **joined;
  cudaStream_t stream;
  if (cudaStreamCreate(&stream) != cudaSuccess) return "no stream";
  std::vector<float> own(kRanks * kEach);
  std::iota(own.begin(), own.end(), static_cast<float>(rank));

  DeviceMemory<float> data(own);
  const absl::Span<float> slice = data.span().subspan(rank * kEach, kEach);
  absl::Status status = communicator.ReduceScatter(TypedBuffer(data.span()), slice, stream);
  if (status.ok()) status = communicator.AllGather(TypedBuffer(slice), data.span(), stream);
  if (status.ok()) status = communicator.Await("the end", AtEndOf(stream));
  if (!status.ok()) return std::string(status.message());
  const std::vector<float> sums = data.Read();
  for (int64_t i = 0; i < kRanks * kEach; ++i) {
    if (sums[i] != static_cast<float>(2 * i + 1)) return absl::StrCat("wrong sum at ", i);
  }
  status = communicator.AllReduce(data.span(), stream);
  if (status.ok()) status = communicator.Broadcast(data.span(), 1, stream);
  if (status.ok()) status = communicator.Await("the end", AtEndOf(stream));
  if (!status.ok()) return std::string(status.message());
  if (data.Read()[1] != 6) return "wrong sum of sums";

  const uint16_t one = 0x3F80, two = 0x4000;  // bf16
  DeviceMemory<uint16_t> halves(std::vector<uint16_t>(kEach, one));
  DeviceMemory<double> doubles(std::vector<double>(kEach, 0x1p-40 * rank + 1));
  status = communicator.AllReduce({halves.span().data(), kEach, CollectiveType::kBf16}, stream);
  if (status.ok()) status = communicator.AllReduce(doubles.span(), stream);
  if (status.ok()) status = communicator.Await("the end", AtEndOf(stream));
  if (!status.ok()) return std::string(status.message());
  if (halves.Read() != std::vector<uint16_t>(kEach, two)) return "wrong sum in bf16";
  return doubles.Read() == std::vector<double>(kEach, 0x1p-40 + 2) ? "" : "wrong sum in f64";
}

TEST(NcclCommunicatorTest, TwoProcessesOnOneGpuReduceGatherAndBroadcast) {
  if (const std::string why = WhyNoGpu(); !why.empty()) GTEST_SKIP() << why;
  RunInTwoProcesses([](NcclGroup& group, int rank) { EXPECT_EQ(RunRank(group, rank), ""); });
}

TEST(NcclCommunicatorTest, ARankThatNeverComesIsATimeoutThatNamesIt) {
  if (const std::string why = WhyNoGpu(); !why.empty()) GTEST_SKIP() << why;
  auto group = NcclGroup::Create(kRanks, absl::Seconds(2));
  ASSERT_TRUE(group.ok()) << group.status();
  const absl::Status status = (*group)->Join(0).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(ReasonOf(status), "COLLECTIVE_TIMEOUT");
  EXPECT_THAT(status.message(), HasSubstr("rank 0, 1"));
}

TEST(NcclCommunicatorTest, BytesThatAreNoIdAreRefused) {
  const auto group = NcclGroup::Open("short", kRanks);
  if (absl::IsUnavailable(group.status())) GTEST_SKIP() << group.status().message();
  EXPECT_TRUE(absl::IsInvalidArgument(group.status())) << group.status();
}

}  // namespace
}  // namespace muster::nccl_communicator_test
