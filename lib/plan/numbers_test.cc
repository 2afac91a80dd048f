#include "lib/plan/numbers.h"

#include <cstdint>
#include <memory>
#include <sstream>
#include <type_traits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::numbers_test {
namespace {

using ::testing::ElementsAre;

template <typename From, typename To>
constexpr bool kPasses = std::is_convertible_v<From, To>;

template <typename Vector, typename Index>
concept IndexedBy = requires(Vector vector, Index index) {
  vector[index];
};
template <typename Table, typename Row, typename Column>
concept AddressedBy = requires(Table table, Row row, Column column) {
  table(row, column);
};

// The compiler checks these assertions. They show that a number of one kind cannot be passed or
// used as an index where another kind is expected.
static_assert(!kPasses<int, Rank> && !kPasses<Rank, int>);
static_assert(!kPasses<Rank, ShardIndex> && !kPasses<ShardIndex, Rank>);
static_assert(!kPasses<ChunkId, LocalChunk> && !kPasses<LocalChunk, ChunkId>);
static_assert(!kPasses<LocalChunk, TrainedChunk> && !kPasses<TrainedChunk, LocalChunk>);
static_assert(IndexedBy<NumberedVector<Rank, int>, Rank>);
static_assert(!IndexedBy<NumberedVector<Rank, int>, ShardIndex> &&
              !IndexedBy<NumberedVector<Rank, int>, int>);
using Table = NumberedTable<LocalChunk, Rank, int>;
static_assert(AddressedBy<Table, LocalChunk, Rank>);
static_assert(!AddressedBy<Table, Rank, LocalChunk> && !AddressedBy<Table, ChunkId, Rank>);
static_assert(sizeof(Rank) == sizeof(int32_t) && std::is_trivially_copyable_v<Rank>);

TEST(NumbersTest, AreCountedFromZero) {
  std::vector<Rank> ranks;
  for (const Rank rank : NumbersBelow<Rank>(3)) ranks.push_back(rank);
  EXPECT_THAT(ranks, ElementsAre(Rank(0), Rank(1), Rank(2)));
  for (const Rank rank : NumbersBelow<Rank>(0)) ADD_FAILURE() << rank;
}

TEST(NumbersTest, AreShownAsNumbers) {
  std::ostringstream text;
  text << ChunkId(7) << ' ' << ShardIndex(-1);
  EXPECT_EQ(text.str(), "7 -1");
}

TEST(NumberedVectorTest, HasAnElementForEachNumber) {
  NumberedVector<ShardIndex, std::unique_ptr<int>> loads(1);
  EXPECT_EQ(loads[ShardIndex(0)], nullptr);
  loads.emplace_back(std::make_unique<int>(5));
  EXPECT_EQ(*loads[ShardIndex(1)], 5);
  EXPECT_EQ(loads.NumberOf(loads[ShardIndex(1)]), ShardIndex(1));
  EXPECT_EQ(loads.size(), 2);
  EXPECT_TRUE(loads.Has(ShardIndex(0)) && loads.Has(ShardIndex(1)));
  EXPECT_FALSE(loads.Has(ShardIndex(2)) || loads.Has(ShardIndex(-1)));
}

TEST(NumberedVectorTest, IsConstructibleFromItsElements) {
  const NumberedVector<Rank, int> samples = {5, 6};
  EXPECT_EQ(samples[Rank(1)], 6);
  EXPECT_THAT(samples, ElementsAre(5, 6));
}

TEST(NumberedTableTest, HasAnElementForEachPair) {
  Table table(3, 2, 0);
  int next = 0;
  for (const LocalChunk chunk : NumbersBelow<LocalChunk>(3)) {
    for (const Rank rank : NumbersBelow<Rank>(2)) table(chunk, rank) = next++;
  }
  EXPECT_THAT(table.row(LocalChunk(1)), ElementsAre(2, 3));
  EXPECT_EQ(table(LocalChunk(2), Rank(1)), 5);
}

}  // namespace
}  // namespace muster::numbers_test
