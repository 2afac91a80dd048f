#include "lib/data/order/sample_order.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace muster::sample_order_test {
namespace {

constexpr uint64_t kSeed = 7;

std::vector<int64_t> Order(uint64_t seed, int64_t epoch, int64_t n) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < n; ++i) order.push_back(PermutedSample(seed, epoch, n, i));
  return order;
}

bool IsPermutation(std::vector<int64_t> order) {
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

TEST(SampleOrderTest, EverySampleOccursOnce) {
  for (int64_t n = 1; n <= 300; ++n) EXPECT_TRUE(IsPermutation(Order(kSeed, 3, n))) << n;
  for (int64_t n : {1021, 1024, 1025, 4095, 4096, 65536, 65537, 99991}) {
    EXPECT_TRUE(IsPermutation(Order(kSeed, 0, n))) << n;
  }
}

TEST(SampleOrderTest, HugeDomainsStayInside) {
  for (int64_t n : {int64_t{1} << 40, (int64_t{1} << 40) + 1, (int64_t{1} << 62) + 5}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 1000; ++i) {
      const int64_t sample = PermutedSample(kSeed, 1, n, n - 1 - i);
      EXPECT_TRUE(0 <= sample && sample < n);
      EXPECT_TRUE(seen.insert(sample).second);
    }
  }
}

TEST(SampleOrderTest, DiffersByEpochAndBySeed) {
  const std::vector<int64_t> order = Order(kSeed, 0, 1000);
  EXPECT_EQ(order, Order(kSeed, 0, 1000));
  EXPECT_NE(order, Order(kSeed, 1, 1000));
  EXPECT_NE(order, Order(kSeed + 1, 0, 1000));
  EXPECT_NE(order, Order(kSeed + (uint64_t{1} << 32), 0, 1000));
}

TEST(SampleOrderTest, LooksShuffled) {
  // Of n samples about one is expected at its own position, and about half are ascending
  // neighbours.
  int fixed = 0, ascending = 0;
  constexpr int kEpochs = 20, kSamples = 1000;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const std::vector<int64_t> order = Order(kSeed, epoch, kSamples);
    for (int i = 0; i < kSamples; ++i) {
      fixed += order[i] == i;
      ascending += i > 0 && order[i - 1] < order[i];
    }
  }
  EXPECT_LT(fixed, 3 * kEpochs);
  EXPECT_NEAR(ascending, kEpochs * kSamples / 2, 500);
}

TEST(SampleOrderTest, SmallDomainsHaveEveryOrderAboutEquallyOften) {
  std::map<std::vector<int64_t>, int> times;
  constexpr int kEpochs = 6000;
  for (int epoch = 0; epoch < kEpochs; ++epoch) ++times[Order(kSeed, epoch, 3)];
  EXPECT_EQ(times.size(), 6);
  for (const auto& [order, count] : times) EXPECT_NEAR(count, kEpochs / 6, 200);
}

TEST(SampleOrderTest, SharesTileTheBatch) {
  constexpr int64_t kSamples = 103, kBatch = 10;
  for (int64_t step : {0, 7, 9, 10, 25}) {
    const SampleOrder order = SampleOrder::Full(kSeed, kSamples, kBatch);
    const std::vector<SampleRef> whole = order.SamplesOfStep(step, 0, kBatch);
    std::vector<SampleRef> together;
    for (auto [first, count] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 4}, {4, 3}, {7, 3}, {10, 0}}) {
      const std::vector<SampleRef> share = order.SamplesOfStep(step, first, count);
      together.insert(together.end(), share.begin(), share.end());
    }
    EXPECT_EQ(together, whole) << "step " << step;
    EXPECT_EQ(whole[0].epoch, step / 10);
  }
}

TEST(SampleOrderTest, AnEpochUsesEverySampleOnceExceptTheRemainder) {
  constexpr int64_t kSamples = 103, kBatch = 10;
  const SampleOrder order = SampleOrder::Full(kSeed, kSamples, kBatch);
  for (int64_t epoch : {0, 1, 5}) {
    std::set<int64_t> seen;
    for (int64_t step = epoch * 10; step < (epoch + 1) * 10; ++step) {
      for (const auto [at, sample] : order.SamplesOfStep(step, 0, kBatch)) {
        EXPECT_EQ(at, epoch);
        EXPECT_TRUE(0 <= sample && sample < kSamples);
        EXPECT_TRUE(seen.insert(sample).second) << sample << " twice in epoch " << epoch;
      }
    }
    EXPECT_EQ(seen.size(), 100);
  }
}

TEST(SampleOrderTest, OrderIsStableAcrossVersions) {
  // Checkpoints rely on this order: with another one a resumed job would train differently.
  EXPECT_EQ(Order(7, 0, 10), (std::vector<int64_t>{1, 4, 8, 2, 5, 6, 0, 9, 7, 3}));
  EXPECT_EQ(SampleOrder::Full(7, 60000, 64).SamplesOfStep(1000, 30, 5),
            SamplesOf(1, {54085, 41733, 46286, 21153, 4177}));
  EXPECT_EQ(SampleOrder::Full(~uint64_t{0}, int64_t{1} << 40, 1000).SamplesOfStep(77777777, 990, 3),
            SamplesOf(0, {851033930922, 793694279758, 766112898919}));
}

v1::DataSpec Data(int64_t batch_size, v1::LastBatch last_batch) {
  v1::DataSpec data;
  data.set_seed(kSeed);
  data.set_batch_size(batch_size);
  data.set_last_batch(last_batch);
  return data;
}

v1::DatasetFacts Facts(int64_t samples) {
  v1::DatasetFacts facts;
  facts.set_samples(samples);
  return facts;
}

TEST(SampleOrderTest, DropOfAJobIsTheDefault) {
  for (const v1::LastBatch rule : {v1::LAST_BATCH_UNSPECIFIED, v1::LAST_BATCH_DROP}) {
    v1::DataSpec data = Data(10, rule);
    for (const bool is_named : {false, true}) {
      if (is_named) data.mutable_shuffle()->mutable_full();
      EXPECT_EQ(SampleOrder::Create(data, Facts(103))->SamplesOfStep(25, 0, 10),
                SampleOrder::Full(kSeed, 103, 10).SamplesOfStep(25, 0, 10));
    }
  }
}

TEST(SampleOrderTest, ABatchContinuesWithTheNextEpoch) {
  const SampleOrder order =
      SampleOrder::Create(Data(10, v1::LAST_BATCH_CONTINUE), Facts(14)).value();
  const std::vector<int64_t> first = Order(kSeed, 0, 14), second = Order(kSeed, 1, 14);
  std::vector<SampleRef> expected = SamplesOf(0, absl::MakeSpan(first).subspan(10));
  for (const SampleRef& ref : SamplesOf(1, absl::MakeSpan(second).first(6)))
    expected.push_back(ref);
  EXPECT_EQ(order.SamplesOfStep(1, 0, 10), expected);
}

TEST(SampleOrderTest, WithoutAShuffleSamplesKeepTheOrderOfTheFiles) {
  v1::DataSpec data = Data(4, v1::LAST_BATCH_CONTINUE);
  data.mutable_shuffle()->mutable_none();
  EXPECT_EQ(SampleOrder::Create(data, Facts(6))->SamplesOfStep(1, 0, 4),
            (std::vector<SampleRef>{{0, 4}, {0, 5}, {1, 0}, {1, 1}}));
  data.set_last_batch(v1::LAST_BATCH_DROP);
  EXPECT_EQ(SampleOrder::Create(data, Facts(6))->SamplesOfStep(1, 0, 4),
            SamplesOf(1, {0, 1, 2, 3}));
}

v1::DataSpec BlockData(int64_t batch_size, v1::LastBatch last_batch, int64_t lanes) {
  v1::DataSpec data = Data(batch_size, last_batch);
  v1::BlockShuffle& block = *data.mutable_shuffle()->mutable_block();
  block.set_samples(5);
  block.set_window_blocks(4);
  block.set_lanes(lanes);
  return data;
}

TEST(SampleOrderTest, ABlockShuffleTakesItsBlockFromTheJobOrElseFromTheData) {
  v1::DataSpec data = BlockData(4, v1::LAST_BATCH_CONTINUE, 2);
  v1::DatasetFacts facts = Facts(23);
  const std::vector<SampleRef> first = SampleOrder::Create(data, facts)->SamplesOfStep(0, 0, 4);
  EXPECT_EQ(first, SamplesOf(0, {5, 12, 18, 1}));
  data.mutable_shuffle()->mutable_block()->clear_samples();
  EXPECT_EQ(SampleOrder::Create(data, facts).status().message(),
            "data.shuffle.block.samples: must be set: the data have no mean size");
  facts.set_block_samples(5);
  EXPECT_EQ(SampleOrder::Create(data, facts)->SamplesOfStep(0, 0, 4), first);
}

TEST(SampleOrderTest, RejectsLanesThatDoNotDivideTheBatch) {
  EXPECT_EQ(SampleOrder::Create(BlockData(6, v1::LAST_BATCH_DROP, 4), Facts(23)).status().message(),
            "data.shuffle.block.lanes: must divide data.batch_size = 6 (is 4)");
}

TEST(SampleOrderTest, RejectsABatchLargerThanTheData) {
  const absl::Status status =
      SampleOrder::Create(Data(7, v1::LAST_BATCH_CONTINUE), Facts(6)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(), "data.batch_size: must be from 1 to the 6 training samples (is 7)");
}

struct NamedOrder {
  std::string name;
  SampleOrder order;
};

// Every kind of order that goes through all samples of an epoch.
std::vector<NamedOrder> ContinuingOrders(int64_t samples, int64_t batch_size) {
  std::vector<NamedOrder> orders;
  const auto add = [&](const std::string& name, const v1::DataSpec& data) {
    orders.push_back({absl::StrCat(name, ", ", samples, " in batches of ", batch_size),
                      SampleOrder::Create(data, Facts(samples)).value()});
  };
  v1::DataSpec data = Data(batch_size, v1::LAST_BATCH_CONTINUE);
  add("full", data);
  data.mutable_shuffle()->mutable_none();
  add("none", data);
  for (const int64_t lanes : {1, 2, 4}) {
    add(absl::StrCat("block, lanes ", lanes),
        BlockData(batch_size, v1::LAST_BATCH_CONTINUE, lanes));
  }
  return orders;
}

constexpr std::pair<int64_t, int64_t> kSizes[] = {{103, 12}, {96, 8}, {12, 12}, {257, 20}, {13, 4}};

// Returns the shares of `workers` workers, one after the other.
std::vector<SampleRef> BatchOfWorkers(const SampleOrder& order, int64_t step, int64_t workers) {
  std::vector<SampleRef> batch;
  for (int64_t worker = 0; worker < workers; ++worker) {
    const int64_t first = worker * order.batch_size() / workers;
    const int64_t end = (worker + 1) * order.batch_size() / workers;
    const std::vector<SampleRef> share = order.SamplesOfStep(step, first, end - first);
    batch.insert(batch.end(), share.begin(), share.end());
  }
  return batch;
}

TEST(SampleOrderTest, EachSampleOfEachEpochIsReadOnceWhileWorkersComeAndGo) {
  constexpr int64_t kEpochs = 4;
  for (const auto& [samples, batch_size] : kSizes) {
    for (const auto& [name, order] : ContinuingOrders(samples, batch_size)) {
      const int64_t steps = (kEpochs * samples + batch_size - 1) / batch_size;
      for (const int64_t workers : {1, 2, 3, 0}) {  // 0: another number at each step
        std::vector<SampleRef> seen;
        for (int64_t step = 0; step < steps; ++step) {
          for (const SampleRef& ref :
               BatchOfWorkers(order, step, workers > 0 ? workers : step % 3 + 1)) {
            // The last batch may begin the next epoch.
            if (ref.epoch < kEpochs) seen.push_back(ref);
          }
        }
        std::ranges::sort(seen);
        ASSERT_EQ(seen.size(), kEpochs * samples) << name;
        for (int64_t i = 0; i < kEpochs * samples; ++i) {
          ASSERT_EQ(seen[i], (SampleRef{i / samples, i % samples}))
              << name << ", workers " << workers;
        }
      }
    }
  }
}

TEST(SampleOrderTest, AJobResumesAtAnyStep) {
  for (const auto& [samples, batch_size] : kSizes) {
    const std::vector<NamedOrder> orders = ContinuingOrders(samples, batch_size);
    for (size_t i = 0; i < orders.size(); ++i) {
      std::vector<std::vector<SampleRef>> batches;
      for (int64_t step = 0; step < 60; ++step) {
        batches.push_back(orders[i].order.SamplesOfStep(step, 0, batch_size));
      }
      for (int64_t first = 59; first >= 0; --first) {
        const SampleOrder resumed = ContinuingOrders(samples, batch_size)[i].order;
        EXPECT_EQ(BatchOfWorkers(resumed, first, 3), batches[first]) << orders[i].name;
      }
    }
  }
}

TEST(SampleOrderTest, WithDropNoSampleOfAnEpochIsReadTwice) {
  for (const int64_t lanes : {1, 2, 4}) {
    const SampleOrder order =
        SampleOrder::Create(BlockData(12, v1::LAST_BATCH_DROP, lanes), Facts(103)).value();
    std::set<SampleRef> seen;
    for (int64_t step = 0; step < 4 * 8; ++step) {
      for (const SampleRef& ref : BatchOfWorkers(order, step, step % 3 + 1)) {
        EXPECT_EQ(ref.epoch, step / 8);
        EXPECT_TRUE(seen.insert(ref).second);
      }
    }
  }
}

// Two parts: samples [0, 30) with three quarters of the weight, and [30, 50).
v1::DataSpec MixtureData(int64_t batch_size) {
  v1::DataSpec data = Data(batch_size, v1::LAST_BATCH_CONTINUE);
  for (const double weight : {3, 1}) data.mutable_mixture()->add_parts()->set_weight(weight);
  return data;
}

v1::DatasetFacts MixtureFacts() {
  v1::DatasetFacts facts = Facts(50);
  for (const int64_t samples : {30, 20}) facts.add_part_samples(samples);
  return facts;
}

TEST(SampleOrderTest, EachPartOfAMixtureHasExactEpochsOfItsOwn) {
  v1::DataSpec data = MixtureData(/*batch_size=*/7);
  for (const bool is_shuffled : {true, false}) {
    if (!is_shuffled) data.mutable_shuffle()->mutable_none();
    const SampleOrder order = SampleOrder::Create(data, MixtureFacts()).value();
    for (const int64_t workers : {1, 2, 3, 0}) {  // 0: another number at each step
      std::vector<SampleRef> seen[2];
      for (int64_t step = 0; step < 300; ++step) {
        for (const SampleRef& ref :
             BatchOfWorkers(order, step, workers > 0 ? workers : step % 3 + 1)) {
          seen[ref.sample < 30 ? 0 : 1].push_back(ref);
        }
      }
      EXPECT_NEAR(static_cast<double>(seen[0].size()), 0.75 * 2100, 6);
      for (const int part : {0, 1}) {
        const int64_t samples = part == 0 ? 30 : 20, first = part == 0 ? 0 : 30;
        const int64_t whole = static_cast<int64_t>(seen[part].size()) / samples;
        for (int64_t epoch = 0; epoch < whole; ++epoch) {
          // The order of an epoch is that of its positions, so whole epochs come one by one.
          std::vector<SampleRef> refs(seen[part].begin() + epoch * samples,
                                      seen[part].begin() + (epoch + 1) * samples);
          EXPECT_EQ(std::ranges::is_sorted(refs), !is_shuffled);
          std::ranges::sort(refs);
          for (int64_t i = 0; i < samples; ++i) ASSERT_EQ(refs[i], (SampleRef{epoch, first + i}));
        }
      }
    }
  }
}

TEST(SampleOrderTest, AMixtureResumesAtAnyStep) {
  const SampleOrder order = SampleOrder::Create(MixtureData(8), MixtureFacts()).value();
  for (const int64_t step : {0, 1, 8191, 8192, 1'000'000'000}) {
    const SampleOrder resumed = SampleOrder::Create(MixtureData(8), MixtureFacts()).value();
    EXPECT_EQ(BatchOfWorkers(resumed, step, 3), order.SamplesOfStep(step, 0, 8)) << step;
  }
}

TEST(SampleOrderTest, PartsOfAMixtureHaveOrdersOfTheirOwn) {
  v1::DataSpec data = MixtureData(/*batch_size=*/50);
  data.mutable_mixture()->mutable_parts(0)->set_weight(1);
  v1::DatasetFacts facts = Facts(50);
  for (int part = 0; part < 2; ++part) facts.add_part_samples(25);
  std::vector<int64_t> parts[2];
  for (const SampleRef& ref : SampleOrder::Create(data, facts)->SamplesOfStep(0, 0, 50)) {
    parts[ref.sample / 25].push_back(ref.sample % 25);
  }
  EXPECT_NE(parts[0], parts[1]);
}

TEST(SampleOrderTest, RejectsAMixtureThatDoesNotFitItsData) {
  const auto message = [](const v1::DataSpec& data, const v1::DatasetFacts& facts) {
    return std::string(SampleOrder::Create(data, facts).status().message());
  };
  EXPECT_EQ(message(MixtureData(8), Facts(50)), "data.mixture.parts: has 2 parts, the data have 0");
  v1::DatasetFacts empty = MixtureFacts();
  empty.set_part_samples(1, 0);
  EXPECT_EQ(message(MixtureData(8), empty), "data.mixture.parts[1]: has no training samples");
  v1::DataSpec data = MixtureData(8);
  data.mutable_shuffle()->mutable_block();
  EXPECT_EQ(message(data, MixtureFacts()),
            "data.shuffle.block: a mixture needs a full shuffle or none");
}

}  // namespace
}  // namespace muster::sample_order_test
