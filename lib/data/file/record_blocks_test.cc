#include "lib/data/file/record_blocks.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gtest/gtest.h"
#include "lib/data/order/block_order.h"
#include "lib/data/stage_times.h"
#include "lib/status/status.h"

namespace muster::record_blocks_test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTailBytes = 4;

// Files of records of random bytes and sizes, with bytes between them.
class RecordBlocksTest : public testing::Test {
 protected:
  RecordBlocksTest() : seed_(std::random_device()()), random_(seed_) {
    folder_ = absl::StrCat(testing::TempDir(), "/record_blocks");
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  int64_t Pick(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }

  std::string PathOf(size_t file) const { return absl::StrCat(folder_, "/", file); }

  void Write(const std::vector<int64_t>& records_of_files, int64_t record_bytes_max) {
    Write(records_of_files, std::vector<int64_t>(records_of_files.size(), record_bytes_max));
  }
  void Write(const std::vector<int64_t>& records_of_files,
             const std::vector<int64_t>& record_bytes_max) {
    RecordIndex::Builder builder("key", /*slots=*/1, /*labels=*/0);
    for (size_t file = 0; file < records_of_files.size(); ++file) {
      std::string bytes;
      std::vector<RecordIndex::Builder::Run> runs;
      for (int64_t i = 0; i < records_of_files[file]; ++i) {
        bytes.append(Pick(0, 12), '-');
        runs.push_back({.offset = std::ssize(bytes),
                        .bytes = static_cast<int32_t>(Pick(0, record_bytes_max[file]))});
        for (int64_t k = 0; k < runs.back().bytes + kTailBytes; ++k) {
          bytes += static_cast<char>(random_());
        }
        content_.push_back(bytes.substr(runs.back().offset));
      }
      std::ofstream(PathOf(file), std::ios::binary) << bytes;
      const auto opened = DataFile::Open(PathOf(file), "data.x.path").value();
      builder.AddFile(PathOf(file), opened->bytes(), opened->modified_ns());
      for (const RecordIndex::Builder::Run& run : runs) builder.Add({run}, {});
    }
    index_ = std::move(builder).Build();
    files_ = std::make_unique<IndexedFiles>(index_, "data.x.path");
  }

  RecordBlocks::Options Options(int64_t block_samples, int64_t bytes_max) const {
    return {.index = index_,
            .files = files_.get(),
            .samples = index_->samples(),
            .tail_bytes = kTailBytes,
            .bytes_max = bytes_max,
            .block_samples = block_samples,
            .batches_in_use = 1000};
  }

  int64_t FileBytes() const {
    int64_t bytes = 0;
    for (const IndexedFile& file : index_->files()) bytes += file.bytes;
    return bytes;
  }

  // Returns how many of the samples were not in memory. Compares the bytes of the others.
  int64_t Missing(const RecordBlocks::Held& held, absl::Span<const SampleRef> samples) const {
    int64_t missing = 0;
    for (size_t i = 0; i < samples.size(); ++i) {
      const int64_t sample = samples[i].sample;
      const std::byte* const bytes = held.Find(i, index_->at(sample));
      if (bytes == nullptr) {
        ++missing;
      } else {
        const std::string& content = content_[sample];
        EXPECT_EQ(std::memcmp(bytes, content.data(), content.size()), 0) << "sample " << sample;
      }
    }
    return missing;
  }

  // Uses the samples in batches of 16. Each call continues with the next batch.
  int64_t HoldAll(RecordBlocks& blocks, const std::vector<SampleRef>& samples) {
    int64_t missing = 0;
    for (size_t i = 0; i < samples.size(); i += 16) {
      const auto some = absl::MakeConstSpan(samples).subspan(i, 16);
      missing += Missing(blocks.Hold(batch_++, some), some);
    }
    return missing;
  }

  const uint32_t seed_;
  const testing::ScopedTrace trace_{__FILE__, __LINE__, absl::StrCat("seed ", seed_)};
  std::mt19937_64 random_;
  std::string folder_;
  std::vector<std::string> content_;  // of the records, with their tails
  std::shared_ptr<const RecordIndex> index_;
  std::unique_ptr<IndexedFiles> files_;
  int64_t batch_ = 0;
};

std::vector<SampleRef> InOrder(int64_t samples, int64_t epoch = 0) {
  std::vector<SampleRef> refs;
  for (int64_t i = 0; i < samples; ++i) refs.push_back({epoch, i});
  return refs;
}

// Counts the bytes that this thread reads while it exists.
class ReadBytes {
 public:
  ReadBytes() { SetStageTimes(&times_); }
  ~ReadBytes() { SetStageTimes(nullptr); }
  int64_t bytes() const { return times_.read_bytes; }

 private:
  StageTimes times_;
};

TEST_F(RecordBlocksTest, SeveralThreadsReadTheBytesOfEachSampleInBlockOrder) {
  for (int round = 0; round < 20; ++round) {
    content_.clear();
    std::vector<int64_t> records;
    for (int64_t file = Pick(1, 12); file > 0; --file) records.push_back(Pick(0, 80));
    records.push_back(8);
    Write(records, /*record_bytes_max=*/300);
    const int64_t samples = index_->samples(), lanes = int64_t{1} << Pick(0, 3);
    const int64_t batch_size = lanes * Pick(1, 12), threads = Pick(1, 4);
    if (samples < batch_size) continue;
    const int64_t block_samples = Pick(1, 60);
    const BlockOrder order({.seed = random_(),
                            .samples = samples,
                            .epoch_samples = samples,
                            .batch_size = batch_size,
                            .block_samples = block_samples,
                            .window_blocks = Pick(1, 8),
                            .lanes = lanes});
    const int64_t bytes_max = Pick(0, 2 * FileBytes());
    RecordBlocks blocks(Options(block_samples, bytes_max));
    const int64_t first_step = Pick(0, 50), steps = 3 * samples / batch_size;
    std::atomic<int64_t> next = first_step;
    {
      std::vector<std::jthread> readers;
      for (int64_t i = 0; i < threads; ++i) {
        readers.emplace_back([&] {
          for (int64_t step; (step = next++) < first_step + steps;) {
            std::vector<SampleRef> batch(batch_size);
            order.Fill(step * batch_size, absl::MakeSpan(batch));
            blocks.WillHold(step, batch);
            Missing(blocks.Hold(step, batch), batch);
          }
        });
      }
    }
    EXPECT_LE(blocks.memory_bytes(), bytes_max);
  }
}

TEST_F(RecordBlocksTest, AnEpochReadsEachBlockOnceAndKeepsTwoWindows) {
  Write({700, 0, 1, 500, 399}, /*record_bytes_max=*/200);
  const int64_t samples = index_->samples();
  const BlockOrder order({.seed = random_(),
                          .samples = samples,
                          .epoch_samples = samples,
                          .batch_size = 16,
                          .block_samples = 50,
                          .window_blocks = 4,
                          .lanes = 1});
  RecordBlocks blocks(Options(50, /*bytes_max=*/1 << 20));
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<SampleRef> refs(samples);
    order.Fill(epoch * samples, absl::MakeSpan(refs));
    const ReadBytes read;
    EXPECT_EQ(HoldAll(blocks, refs), 0);
    EXPECT_LE(read.bytes(), FileBytes());
    // The bytes between blocks are not read.
    EXPECT_GE(read.bytes(), FileBytes() - 12 * 40);
  }
  // 32 blocks have the bytes of the files. While one window ends the next one begins.
  EXPECT_LE(blocks.held_bytes(), FileBytes() / 32 * 10);
}

TEST_F(RecordBlocksTest, ABlockIsFreedOnceItsSamplesAreUsed) {
  Write({100}, 100);
  RecordBlocks blocks(Options(/*block_samples=*/10, FileBytes() / 2));
  EXPECT_EQ(HoldAll(blocks, InOrder(100)), 0) << "there is room for four or five blocks";
}

TEST_F(RecordBlocksTest, BlocksTakeTheMemoryOfUsedOnes) {
  Write({1000}, std::vector<int64_t>{20});
  RecordBlocks blocks(Options(/*block_samples=*/100, /*bytes_max=*/1 << 20));
  EXPECT_EQ(HoldAll(blocks, InOrder(1000)), 0);
  EXPECT_EQ(blocks.held_bytes(), 0);
  EXPECT_GT(blocks.memory_bytes(), 0);
  // A batch of 16 samples has up to two of the ten blocks. Their sizes differ a little.
  EXPECT_LE(blocks.memory_bytes(), FileBytes() * 4 / 10);
}

TEST_F(RecordBlocksTest, ABlockThatFoundNoRoomIsNotReadWhileItIsInUse) {
  Write({400}, 100);
  RecordBlocks blocks(Options(/*block_samples=*/100, FileBytes() / 2));
  std::vector<SampleRef> refs = InOrder(400);
  std::ranges::shuffle(refs, random_);
  const ReadBytes read;
  const int64_t missing = HoldAll(blocks, refs);
  EXPECT_GE(missing, 200) << "of four blocks there is room for one";
  EXPECT_LE(missing, 300);
  EXPECT_LE(read.bytes(), FileBytes() / 2);
  EXPECT_LE(blocks.held_bytes(), FileBytes() / 2);
}

TEST_F(RecordBlocksTest, AWindowWithoutAnyRoomIsReadOneByOne) {
  Write({100}, 100);
  RecordBlocks blocks(Options(/*block_samples=*/50, /*bytes_max=*/100));
  const ReadBytes read;
  EXPECT_EQ(HoldAll(blocks, InOrder(100)), 100);
  EXPECT_EQ(read.bytes(), 0);
}

// Another worker uses the other samples of a block if its share cuts a lane.
TEST_F(RecordBlocksTest, ABlockThatIsNotUsedUpMakesRoomAfterAWhile) {
  Write({3000}, 20);
  RecordBlocks::Options options = Options(/*block_samples=*/100, FileBytes() / 4);
  options.batches_in_use = 10;
  RecordBlocks blocks(options);
  std::vector<SampleRef> refs;
  for (const SampleRef& ref : InOrder(3000)) {
    if (ref.sample % 3 != 0) refs.push_back(ref);
  }
  EXPECT_EQ(HoldAll(blocks, refs), 0);
}

TEST_F(RecordBlocksTest, AShareThatCutsLanesKeepsLittleMoreThanTwoWindows) {
  Write({8000}, 2000);
  v1::DataSpec data;
  data.set_batch_size(256);
  data.mutable_shuffle()->mutable_block()->set_samples(80);
  data.mutable_shuffle()->mutable_block()->set_lanes(8);
  const auto blocks = RecordBlocks::ForShuffle(data, Options(/*block_samples=*/0, FileBytes()));
  ASSERT_NE(blocks, nullptr);
  const BlockOrder order({.seed = random_(),
                          .samples = 8000,
                          .epoch_samples = 8000,
                          .batch_size = 256,
                          .block_samples = 80,
                          .window_blocks = 16,
                          .lanes = 8});
  int64_t missing = 0, held_bytes = 0;
  for (int64_t step = 0; step < 150; ++step) {
    // The second of three workers has two lanes, and a part of two others.
    std::vector<SampleRef> share(86);
    order.Fill(step * 256 + 85, absl::MakeSpan(share));
    missing += Missing(blocks->Hold(step, share), share);
    held_bytes = std::max(held_bytes, blocks->held_bytes());
  }
  EXPECT_EQ(missing, 0);
  // Each lane has two of the 100 blocks in a window. At the ends of an epoch there are more.
  EXPECT_LE(held_bytes, FileBytes() / 100 * 20);
}

TEST_F(RecordBlocksTest, ALargeBlockGetsTheMemoryOfUsedOnes) {
  Write({200, 100}, std::vector<int64_t>{20, 500});
  RecordBlocks blocks(Options(/*block_samples=*/100, index_->files()[1].bytes));
  std::vector<SampleRef> small = InOrder(200);
  std::ranges::shuffle(small, random_);
  EXPECT_EQ(HoldAll(blocks, small), 0);
  EXPECT_EQ(blocks.held_bytes(), 0);
  std::vector<SampleRef> large = InOrder(300);
  large.erase(large.begin(), large.begin() + 200);
  EXPECT_EQ(HoldAll(blocks, large), 0);
}

TEST_F(RecordBlocksTest, AsksForNoMoreOfAWindowThanThereIsRoomFor) {
  Write({1000}, 100);
  const int64_t bytes_max = FileBytes() / 4;
  RecordBlocks::Options options = Options(/*block_samples=*/100, bytes_max);
  options.batches_in_use = 10;
  RecordBlocks blocks(options);
  blocks.WillHold(/*batch=*/10, InOrder(1000));
  EXPECT_LE(blocks.asked_bytes(), bytes_max);
  EXPECT_GE(blocks.asked_bytes(), bytes_max / 2);
  blocks.WillHold(/*batch=*/21, InOrder(100, /*epoch=*/1));
  EXPECT_GT(blocks.asked_bytes(), 0);
  EXPECT_LE(blocks.asked_bytes(), FileBytes() / 5) << "the first window is over";
}

TEST_F(RecordBlocksTest, ASampleIsFoundAgainAfterTheJobWentBack) {
  Write({1000}, 20);
  RecordBlocks::Options options = Options(/*block_samples=*/100, FileBytes() / 2);
  options.batches_in_use = 10;
  RecordBlocks blocks(options);
  EXPECT_EQ(HoldAll(blocks, InOrder(1000, /*epoch=*/5)), 0);
  EXPECT_EQ(HoldAll(blocks, InOrder(500, /*epoch=*/4)), 0);
  EXPECT_EQ(HoldAll(blocks, InOrder(500, /*epoch=*/5)), 0);
}

TEST_F(RecordBlocksTest, ReadsEachSampleAloneIfTheFileIsTruncated) {
  Write({100, 100}, 100);
  // The last record of the second file has its tail only in part.
  fs::resize_file(PathOf(1), index_->files()[1].bytes - 1);
  files_ = std::make_unique<IndexedFiles>(index_, "data.x.path");
  RecordBlocks changed(Options(/*block_samples=*/50, FileBytes()));
  EXPECT_EQ(HoldAll(changed, InOrder(200)), 100) << "the size of the file changed";
}

TEST_F(RecordBlocksTest, ReadsEachSampleAloneIfAnOpenFileShrinks) {
  Write({100, 100}, 100);
  ASSERT_TRUE(files_->Get(1).ok());
  fs::resize_file(PathOf(1), index_->files()[1].bytes - 1);
  RecordBlocks blocks(Options(/*block_samples=*/50, FileBytes()));
  EXPECT_EQ(HoldAll(blocks, InOrder(200)), 50);
}

}  // namespace
}  // namespace muster::record_blocks_test
