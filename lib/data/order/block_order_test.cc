#include "lib/data/order/block_order.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace muster::block_order_test {
namespace {

// An order in which a batch continues with the next epoch.
BlockOrder::Options Continuing(int64_t samples, int64_t batch_size, int64_t block_samples,
                               int64_t window_blocks, int64_t lanes) {
  return {.seed = 7,
          .samples = samples,
          .epoch_samples = samples,
          .batch_size = batch_size,
          .block_samples = block_samples,
          .window_blocks = window_blocks,
          .lanes = lanes};
}

BlockOrder::Options Dropping(BlockOrder::Options options) {
  options.epoch_samples = options.samples / options.batch_size * options.batch_size;
  return options;
}

std::string Describe(const BlockOrder::Options& o) {
  return absl::StrCat("N ", o.samples, ", E ", o.epoch_samples, ", B ", o.batch_size, ", K ",
                      o.block_samples, ", G ", o.window_blocks, ", C ", o.lanes);
}

SampleRef SampleAt(const BlockOrder& order, int64_t position) {
  SampleRef sample;
  order.Fill(position, absl::MakeSpan(&sample, 1));
  return sample;
}

void ExpectEachSampleOnce(const BlockOrder::Options& options) {
  const BlockOrder order(options);
  for (const int64_t epoch : {0, 1, 2, 5}) {
    std::vector<bool> seen(options.samples);
    for (int64_t i = 0; i < options.epoch_samples; ++i) {
      const SampleRef ref = SampleAt(order, epoch * options.epoch_samples + i);
      ASSERT_EQ(ref.epoch, epoch) << Describe(options);
      ASSERT_TRUE(0 <= ref.sample && ref.sample < options.samples) << Describe(options);
      ASSERT_FALSE(seen[ref.sample]) << ref.sample << " twice: " << Describe(options);
      seen[ref.sample] = true;
    }
  }
}

TEST(BlockOrderTest, AnEpochHasNoSampleTwice) {
  std::mt19937_64 random(1);
  const auto pick = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int i = 0; i < 300; ++i) {
    const int64_t lanes = int64_t{1} << pick(0, 4);
    const int64_t batch_size = lanes * pick(1, 12);
    const int64_t samples = batch_size + pick(0, 700);
    const BlockOrder::Options options =
        Continuing(samples, batch_size, pick(1, 40), pick(1, 20), lanes);
    ExpectEachSampleOnce(options);
    ExpectEachSampleOnce(Dropping(options));
    if (HasFailure()) return;
  }
}

TEST(BlockOrderTest, ExtremeSizesWork) {
  ExpectEachSampleOnce(Continuing(1, 1, 1, 1, 1));
  ExpectEachSampleOnce(Continuing(17, 16, 1, 1, 16));
  ExpectEachSampleOnce(Continuing(100, 8, 1000, 4096, 8));  // one block
  ExpectEachSampleOnce(Continuing(101, 4, 100, 1, 4));      // a block of one sample
  ExpectEachSampleOnce(Continuing(3, 8, 2, 1, 2));          // a batch spans four epochs
  const BlockOrder large(Continuing((int64_t{1} << 40) + 3, 1 << 20, 1000, 16, 8));
  std::set<SampleRef> seen;
  for (int64_t i = 0; i < 1000; ++i)
    EXPECT_TRUE(seen.insert(SampleAt(large, (int64_t{1} << 50) + i)).second);
}

// Block reads per block of an epoch, if a worker reads each block of its samples once.
double ReadsPerBlock(const BlockOrder::Options& options, int workers, int64_t epoch) {
  const BlockOrder order(options);
  std::set<std::pair<int64_t, int64_t>> reads;  // worker, block
  std::set<int64_t> blocks;
  for (int64_t i = 0; i < options.epoch_samples; ++i) {
    const int64_t position = epoch * options.epoch_samples + i;
    const int64_t in_batch = position % options.batch_size;
    int64_t worker = 0;
    while (in_batch >= (worker + 1) * options.batch_size / workers) ++worker;
    const int64_t block = SampleAt(order, position).sample / options.block_samples;
    reads.insert({worker, block});
    blocks.insert(block);
  }
  return static_cast<double>(reads.size()) / static_cast<double>(blocks.size());
}

TEST(BlockOrderTest, AlignedWorkersReadEachBlockOnce) {
  // 64 blocks for each of the 8 lanes.
  const BlockOrder::Options options = Continuing(512 * 100, 256, 100, 16, 8);
  for (const int workers : {1, 2, 4, 8}) {
    for (const int64_t epoch : {0, 3})
      EXPECT_EQ(ReadsPerBlock(options, workers, epoch), 1) << workers;
  }
  EXPECT_LE(ReadsPerBlock(options, 3, 0), 1.3);
}

TEST(BlockOrderTest, OddSizesCostAtMostABlockForEachFurtherWorker) {
  const BlockOrder::Options odd = Continuing(51'237, 256, 100, 16, 8);
  for (const BlockOrder::Options& options : {odd, Dropping(odd)}) {
    for (const int workers : {1, 2, 4, 8}) {
      EXPECT_LE(ReadsPerBlock(options, workers, 1), 1 + (workers - 1) / 512.0)
          << workers << " workers, " << Describe(options);
    }
    EXPECT_LE(ReadsPerBlock(options, 3, 1), 1.3);
  }
}

TEST(BlockOrderTest, ALaneReadsTheBlocksOfAWindowTogether) {
  const BlockOrder::Options options = Continuing(512 * 100, 256, 100, 16, 8);
  const BlockOrder order(options);
  const int64_t width = options.batch_size / options.lanes;
  const int64_t window_samples = 2 * options.block_samples;  // 16 blocks of 8 lanes
  for (int64_t lane = 0; lane < options.lanes; ++lane) {
    std::map<int64_t, std::pair<int64_t, int64_t>> first_and_last;  // by block, in lane samples
    int64_t number = 0;
    for (int64_t step = 0; step < options.samples / options.batch_size; ++step) {
      for (int64_t i = lane * width; i < (lane + 1) * width; ++i, ++number) {
        const int64_t block = SampleAt(order, step * options.batch_size + i).sample / 100;
        first_and_last.try_emplace(block, number, number).first->second.second = number;
      }
    }
    for (const auto& [block, span] : first_and_last) {
      EXPECT_EQ(span.first / window_samples, span.second / window_samples) << "block " << block;
    }
  }
}

TEST(BlockOrderTest, NeighboursAreMixedWithinAWindowAndBlocksWithinAnEpoch) {
  const BlockOrder order(Continuing(10'000, 100, 50, 8, 4));
  int neighbours = 0;
  std::vector<int64_t> blocks;
  for (int64_t i = 0; i < 10'000; ++i) {
    const int64_t sample = SampleAt(order, i).sample;
    neighbours += i > 0 && sample == SampleAt(order, i - 1).sample + 1;
    if (i % 100 == 0) blocks.push_back(sample / 50);
  }
  EXPECT_LT(neighbours, 200) << "of one in a hundred pairs";
  EXPECT_FALSE(std::ranges::is_sorted(blocks));
}

TEST(BlockOrderTest, EpochsAndSeedsDiffer) {
  BlockOrder::Options options = Continuing(1000, 10, 10, 4, 2);
  const auto epoch_of = [](const BlockOrder::Options& of, int64_t epoch) {
    const BlockOrder order(of);
    std::vector<int64_t> samples;
    for (int64_t i = 0; i < 1000; ++i) samples.push_back(SampleAt(order, epoch * 1000 + i).sample);
    return samples;
  };
  const std::vector<int64_t> first = epoch_of(options, 0);
  EXPECT_NE(first, epoch_of(options, 1));
  options.seed = 8;
  EXPECT_NE(first, epoch_of(options, 0));
}

TEST(BlockOrderTest, TheDroppedSamplesDifferByEpoch) {
  const BlockOrder::Options options = Dropping(Continuing(1005, 10, 10, 4, 2));
  const BlockOrder order(options);
  std::set<int64_t> ever;
  for (int64_t i = 0; i < 30 * options.epoch_samples; ++i) ever.insert(SampleAt(order, i).sample);
  EXPECT_EQ(ever.size(), 1005);
}

TEST(BlockOrderTest, ManyPositionsGiveTheSamplesOfEachAlone) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  const auto pick = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int i = 0; i < 200; ++i) {
    const int64_t lanes = int64_t{1} << pick(0, 4);
    const int64_t batch_size = lanes * pick(1, 100);
    BlockOrder::Options options =
        Continuing(batch_size + pick(0, 700), batch_size, pick(1, 200), pick(1, 20), lanes);
    if (pick(0, 1) == 0) options = Dropping(options);
    const BlockOrder order(options);
    const int64_t first = pick(0, 3 * options.epoch_samples);
    std::vector<SampleRef> samples(pick(0, 1000));
    order.Fill(first, absl::MakeSpan(samples));
    for (size_t k = 0; k < samples.size(); ++k) {
      ASSERT_EQ(samples[k], SampleAt(order, first + k))
          << first << " + " << k << ": " << Describe(options);
    }
  }
}

TEST(BlockOrderTest, OrderIsStableAcrossVersions) {
  const BlockOrder order(Continuing(23, 4, 5, 4, 2));
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < 12; ++i) samples.push_back(SampleAt(order, i).sample);
  EXPECT_EQ(samples, (std::vector<int64_t>{5, 12, 18, 1, 10, 14, 19, 17, 9, 8, 4, 3}));
}

}  // namespace
}  // namespace muster::block_order_test
