// Tests failures and hangs of NCCL without a GPU, with a fake NCCL.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/collective/fake_nccl.h"
#include "lib/collective/nccl_communicator.h"
#include "lib/status/status.h"

namespace muster::nccl_failure_test {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Milliseconds(30);

class NcclFailureTest : public testing::Test {
 protected:
  // Makes later calls of dlopen() for libnccl.so.2 find this library, which is then loaded by that
  // name.
  static void SetUpTestSuite() {
    void* library = dlopen("lib/collective/libfake_nccl.so", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    fake_ = reinterpret_cast<decltype(&TheFakeNccl)>(dlsym(library, "TheFakeNccl"))();
  }

  void SetUp() override {
    fake_->start_hangs = false;
    fake_->asynchronous = ncclSuccess;
    for (auto& aborts : fake_->aborts) aborts = 0;
    group_ = NcclGroup::Create(2, kTimeout).value();
  }

  std::vector<int> aborts() const { return {fake_->aborts[0], fake_->aborts[1]}; }

  static inline FakeNccl* fake_ = nullptr;
  std::unique_ptr<NcclGroup> group_;
  std::vector<float> data_ = std::vector<float>(8);
};

absl::StatusOr<bool> Never() { return false; }

TEST_F(NcclFailureTest, AJoinWithoutTheOtherRanksTimesOutAndAborts) {
  fake_->start_hangs = true;
  const absl::Status status = group_->Join(0).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(ReasonOf(status), "COLLECTIVE_TIMEOUT");
  EXPECT_EQ(aborts(), (std::vector<int>{1, 0}));
}

TEST_F(NcclFailureTest, ATimeoutNamesTheSlowRankAndTheAwaitedWork) {
  const auto first = group_->Join(0).value();
  const auto second = group_->Join(1).value();
  ASSERT_TRUE(first->AllReduce(absl::MakeSpan(data_), nullptr).ok());
  const absl::Status status = first->Await("the sum of bucket 3", Never);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(ReasonOf(status), "COLLECTIVE_TIMEOUT");
  EXPECT_THAT(std::string(status.message()), HasSubstr("the sum of bucket 3"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("for rank 1"));
  EXPECT_EQ(aborts(), (std::vector<int>{1, 0}));
}

TEST_F(NcclFailureTest, OperationsPassTheirTypeAndTheirElements) {
  const auto first = group_->Join(0).value();
  std::vector<double> memory(8);
  const auto passed = [&](const absl::Status& called) {
    EXPECT_TRUE(called.ok()) << called;
    return std::pair(fake_->count.load(), fake_->type.load());
  };
  for (const auto& [type, expected] : {std::pair(CollectiveType::kF32, ncclFloat32),
                                       std::pair(CollectiveType::kBf16, ncclBfloat16),
                                       std::pair(CollectiveType::kF16, ncclFloat16),
                                       std::pair(CollectiveType::kF64, ncclFloat64)}) {
    const TypedBuffer data(memory.data(), 8, type), slice(memory.data(), 4, type);
    EXPECT_EQ(passed(first->AllReduce(data, nullptr)), std::pair(size_t{8}, expected));
    EXPECT_EQ(passed(first->ReduceScatter(data, slice, nullptr)), std::pair(size_t{4}, expected));
    EXPECT_EQ(passed(first->Broadcast(data, 1, nullptr)), std::pair(size_t{8}, expected));
    EXPECT_EQ(passed(first->AllGather(slice, data, nullptr)), std::pair(size_t{4}, expected));
  }
}

// Leave() must end the streams' operations, because the streams are awaited next.
TEST_F(NcclFailureTest, LeaveAbortsItsOwnCommunicatorAndReleasesTheOthers) {
  const auto first = group_->Join(0).value();
  const auto second = group_->Join(1).value();
  first->Leave(absl::AbortedError("cuda:0 gave up"));
  EXPECT_EQ(aborts(), (std::vector<int>{1, 0}));

  EXPECT_EQ(second->Await("the sum of bucket 3", Never), absl::AbortedError("cuda:0 gave up"));
  EXPECT_EQ(aborts(), (std::vector<int>{1, 1}));
  EXPECT_EQ(first->AllReduce(absl::MakeSpan(data_), nullptr), absl::AbortedError("cuda:0 gave up"));
}

TEST_F(NcclFailureTest, AnAsynchronousErrorAborts) {
  const auto first = group_->Join(0).value();
  fake_->asynchronous = ncclRemoteError;
  const absl::Status status = first->Await("the sum of bucket 3", Never);
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the fake's error (told to)"));
  EXPECT_EQ(aborts(), (std::vector<int>{1, 0}));
}

TEST_F(NcclFailureTest, AnErrorOfTheGpuAborts) {
  const auto first = group_->Join(0).value();
  const absl::Status status = first->Await("the sum of bucket 3", []() -> absl::StatusOr<bool> {
    return absl::InternalError("illegal address");
  });
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_EQ(aborts(), (std::vector<int>{1, 0}));
}

}  // namespace
}  // namespace muster::nccl_failure_test
