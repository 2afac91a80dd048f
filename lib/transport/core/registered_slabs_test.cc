#include "lib/transport/core/registered_slabs.h"

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/transport/core/shared_slab.h"

namespace muster::registered_slabs_test {
namespace {

constexpr int64_t kBytes = 8192;

class RegisteredSlabsTest : public ::testing::Test {
 protected:
  std::shared_ptr<SharedSlab> MakeSlab() { return *SharedSlab::Allocate(kBytes); }

  // Returns 0 if no slab contains `payload`.
  uint32_t NumberHolding(absl::Span<const std::byte> payload) {
    const RegisteredSlabs::Slab* found = slabs_.Holding(payload);
    return found == nullptr ? 0 : found->number;
  }

  RegisteredSlabs slabs_;
};

TEST_F(RegisteredSlabsTest, FindsTheSlabThatHoldsAllOfAPayload) {
  // The slabs may or may not be adjacent in memory, in any order.
  const auto a = MakeSlab(), b = MakeSlab(), c = MakeSlab();
  for (const auto& slab : {b, c, a}) {
    const uint32_t number = slabs_.Register(slab);
    const absl::Span<const std::byte> memory = slab->memory();
    EXPECT_EQ(NumberHolding(memory), number);
    EXPECT_EQ(NumberHolding(memory.subspan(kBytes - 1)), number);
    EXPECT_EQ(NumberHolding(memory.subspan(100, 100)), number);
    EXPECT_NE(NumberHolding({memory.data() + 1, kBytes}), number);
  }
  EXPECT_EQ(slabs_.size(), 3u);
  const std::byte elsewhere[16] = {};
  EXPECT_EQ(NumberHolding(elsewhere), 0u);
}

TEST_F(RegisteredSlabsTest, ASlabStaysUntilItsLastRegistrationEnds) {
  const auto slab = MakeSlab();
  const uint32_t number = slabs_.Register(slab);
  EXPECT_EQ(slabs_.Register(slab), number);
  slabs_.Unregister(number);
  ASSERT_NE(slabs_.Numbered(number), nullptr);
  EXPECT_EQ(slabs_.Numbered(number)->slab, slab);
  EXPECT_FALSE(slabs_.TakeWithdrawn());
  slabs_.Unregister(number);
  EXPECT_EQ(slabs_.Numbered(number), nullptr);
  EXPECT_EQ(NumberHolding(slab->memory()), 0u);
  EXPECT_TRUE(slabs_.TakeWithdrawn());
  EXPECT_FALSE(slabs_.TakeWithdrawn());
}

TEST_F(RegisteredSlabsTest, NumbersAreNeverReused) {
  const auto slab = MakeSlab();
  const uint32_t first = slabs_.Register(slab);
  slabs_.Unregister(first);
  EXPECT_NE(slabs_.Register(slab), first);
  EXPECT_EQ(slabs_.Numbered(first), nullptr);
}

TEST_F(RegisteredSlabsTest, RemindSetsTheWithdrawalAgain) {
  EXPECT_FALSE(slabs_.TakeWithdrawn());
  slabs_.Remind();
  EXPECT_TRUE(slabs_.TakeWithdrawn());
}

}  // namespace
}  // namespace muster::registered_slabs_test
