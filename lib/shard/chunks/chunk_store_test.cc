#include "lib/shard/chunks/chunk_store.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/transport/core/shared_slab.h"

namespace muster::chunk_store_test {
namespace {

class ChunkStoreTest : public testing::Test {
 protected:
  void Make(v1::WireValues values) {
    TestPlanOptions options{.parameters = {35, 640}, .chunk_bytes = 1 << 20, .workers = 3};
    options.optimizer.mutable_adam()->set_learning_rate(1);
    options.sync.set_values(values);
    options.sync.set_backup_workers(2);
    const v1::JobPlan plan = MakeTestPlan(options);
    const int64_t bytes = ChunkStore::BytesNeeded(plan, kFirstShard);
    store_ = *ChunkStore::Create(std::make_shared<v1::JobPlan>(plan), kFirstShard,
                                 *budget_.Reserve(bytes, absl::ZeroDuration()));
  }

  using Version = ChunkStore::Version;
  using Range = std::pair<const std::byte*, const std::byte*>;

  template <typename T>
  static Range RangeOf(absl::Span<T> memory) {
    const auto* const first = reinterpret_cast<const std::byte*>(memory.data());
    return {first, first + memory.size() * sizeof(T)};
  }

  MemoryBudget budget_{1 << 24};
  std::unique_ptr<ChunkStore> store_;
};

TEST_F(ChunkStoreTest, NothingOverlaps) {
  for (v1::WireValues values : {v1::VALUES_FP32, v1::VALUES_BF16}) {
    Make(values);
    std::vector<Range> ranges;
    for (const LocalChunk chunk : store_->chunks()) {
      const auto elements = static_cast<size_t>(store_->elements(chunk));
      for (const Version& version : {Version{0, 0}, Version{1, 1}, ChunkStore::kHeld}) {
        for (int array = 0; array < store_->arrays(); ++array) {
          ranges.push_back(RangeOf(absl::MakeSpan(store_->Array(chunk, version, array), elements)));
        }
      }
      ASSERT_EQ(store_->value_buffers(), 4);
      for (int spare : {2, 3}) ranges.push_back(RangeOf(store_->WireValues(chunk, {spare, 0})));
      if (store_->values_format(chunk).dtype == WireDType::kF32) continue;
      for (int i : {0, 1}) ranges.push_back(RangeOf(store_->WireValues(chunk, {i, i})));
    }
    std::ranges::sort(ranges);
    for (size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].second, ranges[i].first);
    const Range own = RangeOf(store_->slab()->memory()), out = RangeOf(store_->outgoing());
    for (const Range& range : ranges) {
      const bool is_own = range.first >= own.first && range.second <= own.second;
      const bool is_out = range.first >= out.first && range.second <= out.second;
      EXPECT_TRUE(is_own || is_out);
    }
    for (const LocalChunk chunk : store_->chunks()) {
      for (int buffer = 0; buffer < store_->value_buffers(); ++buffer) {
        EXPECT_NE(SharedSlab::Find(store_->WireValues(chunk, {buffer, 0})), nullptr)
            << "a worker on this host could not read it in place";
      }
    }
  }
}

TEST_F(ChunkStoreTest, SizeIsIndependentOfTheNumberOfWorkers) {
  const auto bytes_for = [](int workers) {
    TestPlanOptions options{.parameters = {35, 640}, .workers = workers};
    options.optimizer.mutable_adam()->set_learning_rate(1);
    return ChunkStore::BytesNeeded(MakeTestPlan(options), kFirstShard);
  };
  EXPECT_EQ(bytes_for(8), bytes_for(1));
}

TEST_F(ChunkStoreTest, F32ValuesAreSentWithoutConversion) {
  Make(v1::VALUES_FP32);
  for (const Version& version : {Version{0, 0}, Version{1, 1}, Version{3, 0}}) {
    EXPECT_EQ(RangeOf(store_->WireValues(LocalChunk(0), version)),
              RangeOf(store_->Values(LocalChunk(0), version)));
  }
}

}  // namespace
}  // namespace muster::chunk_store_test
