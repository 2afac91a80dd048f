#include "lib/engine/cuda/host_mirrors.h"

#include <gtest/gtest.h>

#include <array>

namespace muster::host_mirrors_test {
namespace {

using kernels::cuda::Type;

class HostMirrorsTest : public testing::Test {
 protected:
  // Inserts a mirror, as a device does if it has no mirror of that memory yet.
  HostMirrors::Memory Make(const void* host, Type type, int64_t bytes,
                           const ParameterSlice& slice = {}) {
    HostMirrors::Memory memory(new std::byte[bytes]);
    mirrors_.Insert(host, slice, type, bytes, memory);
    return memory;
  }
  HostMirrors::Memory Find(const void* host, Type type, int64_t bytes,
                           const ParameterSlice& slice = {}) const {
    return mirrors_.Find(host, slice, type, bytes);
  }

  std::array<std::byte, 256> host_{};
  HostAllocations allocations_;
  HostMirrors mirrors_{&allocations_};
};

TEST_F(HostMirrorsTest, ExecutorsOfOneMemoryShareItsMirror) {
  allocations_.Add(host_.data(), 256);
  const HostMirrors::Memory first = Make(&host_[64], Type::kF32, 64);
  EXPECT_EQ(Find(&host_[64], Type::kF32, 64), first);
}

// The first parameter and the block of all parameters begin at the same address.
TEST_F(HostMirrorsTest, TheSameAddressWithOtherBytesOrAnotherTypeIsAnotherMirror) {
  allocations_.Add(host_.data(), 256);
  const HostMirrors::Memory parameter = Make(host_.data(), Type::kF32, 64);
  EXPECT_EQ(Find(host_.data(), Type::kF32, 256), nullptr);
  EXPECT_EQ(Find(host_.data(), Type::kBf16, 64), nullptr);
  EXPECT_EQ(Find(host_.data(), Type::kF32, 64), parameter);
}

TEST_F(HostMirrorsTest, EverySliceOfATensorHasAMirrorOfItsOwn) {
  allocations_.Add(host_.data(), 256);
  const ParameterSlice columns = {.runs = 4, .run_elements = 4, .stride = 8};
  ParameterSlice others = columns;
  others.offset = 4;
  const HostMirrors::Memory own = Make(host_.data(), Type::kF32, 64, columns);
  EXPECT_EQ(Find(host_.data(), Type::kF32, 64, others), nullptr);
  EXPECT_EQ(Find(host_.data(), Type::kF32, 64, columns), own);
}

TEST_F(HostMirrorsTest, MemoryThatIsAllocatedAgainHasNoMirrorYet) {
  allocations_.Add(host_.data(), 256);
  const HostMirrors::Memory stale = Make(&host_[64], Type::kF32, 64);
  allocations_.Remove(host_.data());
  allocations_.Add(host_.data(), 256);
  EXPECT_EQ(Find(&host_[64], Type::kF32, 64), nullptr);

  const HostMirrors::Memory own = Make(&host_[64], Type::kF32, 64);
  EXPECT_EQ(Find(&host_[64], Type::kF32, 64), own);
  EXPECT_NE(own, stale);
}

TEST_F(HostMirrorsTest, AMirrorWithoutAPointerIsForgotten) {
  allocations_.Add(host_.data(), 256);
  Make(host_.data(), Type::kF32, 64);
  EXPECT_EQ(Find(host_.data(), Type::kF32, 64), nullptr);
}

TEST_F(HostMirrorsTest, AnAllocationEndsWhereItsBytesEnd) {
  EXPECT_EQ(allocations_.NumberOf(host_.data()), 0);
  allocations_.Add(&host_[64], 64);
  EXPECT_EQ(allocations_.NumberOf(&host_[63]), 0);
  const int64_t number = allocations_.NumberOf(&host_[64]);
  EXPECT_GT(number, 0);
  EXPECT_EQ(allocations_.NumberOf(&host_[127]), number);
  EXPECT_EQ(allocations_.NumberOf(&host_[128]), 0);
}

}  // namespace
}  // namespace muster::host_mirrors_test
