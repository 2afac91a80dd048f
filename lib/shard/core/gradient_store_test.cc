#include "lib/shard/core/gradient_store.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/transport/core/shared_slab.h"

namespace muster::gradient_store_test {
namespace {

constexpr int kWorkers = 3;

class GradientStoreTest : public testing::Test {
 protected:
  // The parameters are matrices, which may be compressed.
  void Make(v1::CompressionKind kind) {
    TestPlanOptions options{.parameters = {35, 640}, .chunk_bytes = 1 << 20, .workers = kWorkers};
    options.sync.mutable_compression()->set_kind(kind);
    v1::JobPlan plan = MakeTestPlan(options);
    for (auto& parameter : *plan.mutable_graph()->mutable_parameters()) parameter.add_shape(1);
    store_ = *GradientStore::Create(
        plan, kFirstShard,
        *budget_.Reserve(GradientStore::BytesNeeded(plan, kFirstShard), absl::ZeroDuration()));
  }

  using Range = std::pair<const std::byte*, const std::byte*>;

  template <typename T>
  static Range RangeOf(absl::Span<T> memory) {
    const auto* const first = reinterpret_cast<const std::byte*>(memory.data());
    return {first, first + memory.size() * sizeof(T)};
  }

  MemoryBudget budget_{1 << 24};
  std::unique_ptr<GradientStore> store_;
};

TEST_F(GradientStoreTest, NothingOverlaps) {
  for (v1::CompressionKind kind :
       {v1::COMPRESSION_NONE, v1::COMPRESSION_FP16, v1::COMPRESSION_INT8, v1::COMPRESSION_TOPK}) {
    Make(kind);
    std::vector<Range> ranges;
    for (const LocalChunk chunk : NumbersBelow<LocalChunk>(2)) {
      for (const Rank rank : NumbersBelow<Rank>(kWorkers)) {
        ranges.push_back(RangeOf(store_->Gradient(chunk, rank)));
        if (store_->format(chunk).codec == WireCodec::kRaw) continue;
        ranges.push_back(RangeOf(store_->PushMemory(chunk, rank)));
      }
      EXPECT_EQ(SharedSlab::Find(store_->PushMemory(chunk, Rank(0))), nullptr)
          << "the memory is private to this process";
    }
    std::ranges::sort(ranges);
    for (size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].second, ranges[i].first);
    const Range own = RangeOf(store_->memory());
    EXPECT_GE(ranges.front().first, own.first);
    EXPECT_LE(ranges.back().second, own.second);
  }
}

TEST_F(GradientStoreTest, SixteenBitPushIsPlacedSoThatItsSumMayOverwriteIt) {
  Make(v1::COMPRESSION_BF16);
  for (const LocalChunk chunk : NumbersBelow<LocalChunk>(2)) {
    const absl::Span<float> gradient = store_->Gradient(chunk, Rank(1));
    ASSERT_EQ(store_->format(chunk).bytes, 2 * std::ssize(gradient));
    EXPECT_EQ(RangeOf(store_->PushMemory(chunk, Rank(1))).second, RangeOf(gradient).second);
  }
}

// If a large model has few trained parameters, each worker would otherwise need the memory of the
// whole model again.
TEST_F(GradientStoreTest, FrozenChunksNeedNoMemory) {
  TestPlanOptions options{
      .parameters = {35, 640}, .chunk_bytes = 1 << 20, .workers = kWorkers, .has_replicas = true};
  v1::JobPlan plan = MakeTestPlan(options);
  const int64_t bytes = GradientStore::BytesNeeded(plan, kFirstShard);
  const int64_t sum_bytes = GradientStore::SumBytesNeeded(plan, kFirstShard);

  options.frozen = {1};
  plan = MakeTestPlan(options);

  constexpr int64_t kFrozenBytes = 640 * sizeof(float);
  EXPECT_EQ(GradientStore::SumBytesNeeded(plan, kFirstShard), sum_bytes - kFrozenBytes);
  EXPECT_EQ(GradientStore::BytesNeeded(plan, kFirstShard), bytes - (kWorkers + 1) * kFrozenBytes);
}

}  // namespace
}  // namespace muster::gradient_store_test
