#include "lib/data/source/substitution_dataset.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/data/data_fault.h"
#include "lib/data/sample_bytes.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"

namespace muster::substitution_dataset_test {
namespace {

constexpr uint64_t kSeed = 7;

// The row of a sample is {epoch, sample}. Some are damaged.
class Numbers : public Dataset {
 public:
  Numbers(int64_t samples, std::set<int64_t> damaged) : samples_(samples), damaged_(damaged) {}

  int64_t samples() const override { return samples_; }
  int64_t evaluation_samples() const override { return samples_; }
  std::vector<int64_t> part_samples() const override { return parts; }
  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    ++reads;
    for (size_t i = 0; i < samples.size(); ++i) {
      const auto [epoch, sample] = samples[i];
      if (!storage.ok()) return storage;
      const bool is_damaged_here = !rows[1].empty() && other_damaged.contains(sample);
      if (damaged_.contains(sample) || is_damaged_here) {
        return DataDamaged("data.tar.path", "f.tar", sample, 512 * sample, "is no image");
      }
      const int64_t row[2] = {epoch, sample};
      std::memcpy(rows[0].data() + 16 * i, row, 16);
      if (!rows[1].empty()) std::memset(rows[1].data() + 16 * i, 0, 16);
    }
    return absl::OkStatus();
  }
  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    std::vector<int64_t> samples;
    for (int64_t i = 0; i < count; ++i) samples.push_back(first + i);
    return Read(SamplesOf(0, samples), rows);
  }

  bool is_slow() const override { return true; }
  // An index has the targets of all samples.
  absl::StatusOr<int64_t> CountTargets(const Target&, absl::Span<const SampleRef>) const override {
    return 1000;
  }

  std::vector<int64_t> parts;
  std::set<int64_t> other_damaged;  // in the second input
  absl::Status storage;
  mutable std::atomic<int> reads = 0;

 private:
  const int64_t samples_;
  const std::set<int64_t> damaged_;
};

v1::Graph GraphOfNumbers() {
  v1::Graph graph;
  for (const char* name : {"row", "unread"}) {
    v1::GraphInput& input = *graph.add_inputs();
    input.set_name(name);
    input.set_dtype(v1::DTYPE_I32);
    for (const int64_t size : {-1, 4}) input.add_shape(size);
  }
  return graph;
}

std::unique_ptr<const Dataset> Substitute(std::unique_ptr<Numbers> numbers, int64_t damaged_max) {
  return SubstituteDamaged(std::move(numbers), GraphOfNumbers(), kSeed, damaged_max);
}

struct ReadResult {
  absl::Status status;
  std::vector<SampleRef> samples;  // those that were read
};

ReadResult Read(const Dataset& dataset, absl::Span<const SampleRef> samples) {
  std::vector<int64_t> row(2 * samples.size(), -1);
  const std::vector<absl::Span<std::byte>> rows = {BytesOf(row), {}};
  ReadResult result{dataset.Read(samples, rows), {}};
  for (size_t i = 0; i < samples.size(); ++i)
    result.samples.push_back({row[2 * i], row[2 * i + 1]});
  return result;
}

TEST(SubstitutionDatasetTest, ADamagedSampleIsReplacedByAnotherOfItsEpoch) {
  const auto dataset = Substitute(std::make_unique<Numbers>(10, std::set<int64_t>{3}), 5);
  const std::vector<SampleRef> asked = {{2, 1}, {2, 3}, {4, 3}, {4, 9}};
  const ReadResult read = Read(*dataset, asked);
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.samples, (std::vector<SampleRef>{{2, 1},
                                                  SubstituteFor({2, 3}, 0, kSeed, 0, 10),
                                                  SubstituteFor({4, 3}, 0, kSeed, 0, 10),
                                                  {4, 9}}));
  EXPECT_EQ(dataset->substituted(), 2);
  // Another worker, or the same after a restart, reads one sample at a time.
  const auto other = Substitute(std::make_unique<Numbers>(10, std::set<int64_t>{3}), 5);
  for (size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(Read(*other, {asked[i]}).samples[0], read.samples[i]);
  }
}

TEST(SubstitutionDatasetTest, SubstitutesAreOtherSamplesOfTheSamePart) {
  std::set<int64_t> seen;
  for (int attempt = 0; attempt < kSubstitutesMax; ++attempt) {
    for (int64_t epoch = 0; epoch < 40; ++epoch) {
      const SampleRef other = SubstituteFor({epoch, 12}, attempt, kSeed, 10, 5);
      EXPECT_EQ(other.epoch, epoch);
      EXPECT_TRUE(10 <= other.sample && other.sample < 15 && other.sample != 12) << other.sample;
      seen.insert(other.sample);
    }
  }
  EXPECT_EQ(seen.size(), 4);
  EXPECT_EQ(SubstituteFor({0, 1}, 0, kSeed, 0, 2).sample, 0);

  auto numbers = std::make_unique<Numbers>(20, std::set<int64_t>{4});
  numbers->parts = {3, 2, 15};
  const auto dataset = Substitute(std::move(numbers), 100);
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    EXPECT_EQ(Read(*dataset, {{epoch, 4}}).samples[0], (SampleRef{epoch, 3}));
  }
}

TEST(SubstitutionDatasetTest, ADamagedSubstituteIsReplacedToo) {
  const SampleRef first = SubstituteFor({0, 3}, 0, kSeed, 0, 100);
  const auto dataset =
      Substitute(std::make_unique<Numbers>(100, std::set<int64_t>{3, first.sample}), 1);
  EXPECT_EQ(Read(*dataset, {{0, 3}}).samples[0], SubstituteFor({0, 3}, 1, kSeed, 0, 100));
  EXPECT_EQ(dataset->substituted(), 1);
}

TEST(SubstitutionDatasetTest, TheAttemptsAreBounded) {
  std::set<int64_t> all;
  for (int64_t sample = 0; sample < 10; ++sample) all.insert(sample);
  auto numbers = std::make_unique<Numbers>(10, all);
  const Numbers& counted = *numbers;
  const auto dataset = Substitute(std::move(numbers), 5);
  const absl::Status status = Read(*dataset, {{0, 3}}).status;
  EXPECT_EQ(status.message(),
            "data.tar.path: f.tar: record 3 at byte 1536: is no image; so are all 16 samples that "
            "could replace it: repair the data");
  EXPECT_EQ(counted.reads, 2 + kSubstitutesMax);
  const auto single = Substitute(std::make_unique<Numbers>(1, std::set<int64_t>{0}), 5);
  EXPECT_EQ(ReasonOf(Read(*single, {{0, 0}}).status), "DATA_DAMAGED");
}

TEST(SubstitutionDatasetTest, BeyondTheBoundTheErrorSaysHowToRaiseIt) {
  const auto dataset = Substitute(std::make_unique<Numbers>(10, std::set<int64_t>{1, 2, 3}), 2);
  ASSERT_TRUE(Read(*dataset, {{0, 1}, {0, 2}}).status.ok());
  const absl::Status status = Read(*dataset, {{0, 0}, {0, 3}}).status;
  EXPECT_EQ(ReasonOf(status), "DATA_DAMAGED");
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_EQ(FaultsOf(status).at(0).field, "data.tar.path");
  EXPECT_EQ(status.message(),
            "data.tar.path: f.tar: record 3 at byte 1536: is no image; this worker has replaced 2 "
            "damaged samples of epoch 0, as many as data.damaged_max allows; correct the job file "
            "or the data (muster data verify lists all such samples), or set a larger "
            "data.damaged_max, which lets each worker replace that many samples of each epoch by "
            "others");
  EXPECT_FALSE(Read(*dataset, {{0, 3}}).status.ok()) << "again";
  EXPECT_TRUE(Read(*dataset, {{1, 3}, {1, 2}}).status.ok()) << "the next epoch";
  EXPECT_EQ(dataset->substituted(), 4);
}

TEST(SubstitutionDatasetTest, ReadingASampleAgainCountsOnce) {
  const auto dataset = Substitute(std::make_unique<Numbers>(10, std::set<int64_t>{1}), 1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Read(*dataset, {{0, 1}}).status.ok());
  EXPECT_TRUE(Read(*dataset, {{1, 1}}).status.ok());
  EXPECT_TRUE(Read(*dataset, {{0, 1}}).status.ok()) << "after a rollback";
  EXPECT_EQ(dataset->substituted(), 2);
}

TEST(SubstitutionDatasetTest, ByDefaultTheFirstDamagedSampleFails) {
  const auto dataset = Substitute(std::make_unique<Numbers>(10, std::set<int64_t>{1}), 0);
  const absl::Status status = Read(*dataset, {{0, 1}}).status;
  EXPECT_EQ(status.message(),
            "data.tar.path: f.tar: record 1 at byte 512: is no image; correct the job file or the "
            "data (muster data verify lists all such samples), or set a larger data.damaged_max, "
            "which lets each worker replace that many samples of each epoch by others");
  EXPECT_EQ(dataset->substituted(), 0);
}

TEST(SubstitutionDatasetTest, UndamagedSamplesAreReadOnceAndTogether) {
  auto numbers = std::make_unique<Numbers>(10, std::set<int64_t>{});
  const Numbers& counted = *numbers;
  const auto dataset = Substitute(std::move(numbers), 5);
  EXPECT_TRUE(Read(*dataset, SamplesOf(0, {5, 6, 7, 8})).status.ok());
  EXPECT_EQ(counted.reads, 1);
}

TEST(SubstitutionDatasetTest, HeldOutSamplesAndErrorsOfTheStorageAreNotReplaced) {
  auto numbers = std::make_unique<Numbers>(10, std::set<int64_t>{1});
  Numbers& changed = *numbers;
  const auto dataset = Substitute(std::move(numbers), 5);
  std::vector<int64_t> row(4);
  const std::vector<absl::Span<std::byte>> rows = {BytesOf(row), {}};
  EXPECT_EQ(ReasonOf(dataset->ReadEvaluation(0, 2, rows)), "DATA_DAMAGED");
  changed.storage = absl::UnavailableError("the disk is gone");
  EXPECT_TRUE(absl::IsUnavailable(Read(*dataset, {{0, 1}}).status));
  EXPECT_EQ(dataset->substituted(), 0);
}

TEST(SubstitutionDatasetTest, CountsTheTargetsOfSubstitutes) {
  const v1::Graph graph = GraphOfNumbers();
  const SampleRef other = SubstituteFor({0, 3}, 0, kSeed, 0, 10);
  const Dataset::Target target{
      .graph = &graph, .input = 0, .use = {.ignore_index = static_cast<int32_t>(other.sample)}};
  const auto dataset = Substitute(std::make_unique<Numbers>(10, std::set<int64_t>{3}), 1);
  EXPECT_EQ(*dataset->CountTargets(target, SamplesOf(0, {3})), 3) << "of four numbers";
  const auto without = Substitute(std::make_unique<Numbers>(10, std::set<int64_t>{3}), 0);
  EXPECT_EQ(*without->CountTargets(target, SamplesOf(0, {3})), 1000) << "from the index";
  EXPECT_TRUE(without->is_slow());
}

TEST(SubstitutionDatasetTest, CountingFindsDamageInOtherInputsAndDoesNotUseUpTheLimit) {
  const v1::Graph graph = GraphOfNumbers();
  const SampleRef other = SubstituteFor({0, 3}, 0, kSeed, 0, 10);
  const int64_t second = other.sample == 5 ? 6 : 5;
  auto numbers = std::make_unique<Numbers>(10, std::set<int64_t>{});
  numbers->other_damaged = {3, second};
  const auto dataset = Substitute(std::move(numbers), 1);
  const Dataset::Target target{
      .graph = &graph, .input = 0, .use = {.ignore_index = static_cast<int32_t>(other.sample)}};
  EXPECT_EQ(*dataset->CountTargets(target, SamplesOf(0, {3})), 3) << "as the owner of sample 3";
  const auto several = dataset->CountTargets(target, SamplesOf(0, {3, second}));
  EXPECT_TRUE(several.ok()) << several.status();
  EXPECT_EQ(dataset->substituted(), 0);
  EXPECT_EQ(*dataset->CountTargets(target, {}), 0);
}

TEST(SubstitutionDatasetTest, SeveralThreadsCountTogether) {
  std::set<int64_t> damaged;
  for (int64_t sample = 0; sample < 100; sample += 2) damaged.insert(sample);
  const auto dataset = Substitute(std::make_unique<Numbers>(100, damaged), 50);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int64_t sample = 0; sample < 100; ++sample) {
          EXPECT_TRUE(Read(*dataset, {{0, sample}}).status.ok());
        }
      });
    }
  }
  EXPECT_EQ(dataset->substituted(), 50);
}

}  // namespace
}  // namespace muster::substitution_dataset_test
