// Reads files in block order through the whole pipeline.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/data/dataset.h"
#include "lib/data/format/tar_bytes.h"
#include "lib/data/format/testing/example.pb.h"
#include "lib/data/format/tfrecord.h"
#include "lib/data/order/sample_order.h"
#include "lib/data/pipeline/input_pipeline.h"
#include "lib/data/source/open_dataset.h"
#include "lib/data/stage_times.h"
#include "lib/engine/backends/backends.h"
#include "lib/status/status.h"

namespace muster::block_shuffle_test {
namespace {

namespace fs = std::filesystem;

constexpr int kNumbers = 250;
constexpr int64_t kBlockSamples = 70;  // 70 KB, so that blocks are worth it

v1::Graph GraphOfNumbers() {
  v1::Graph graph;
  v1::GraphInput& input = *graph.add_inputs();
  input.set_name("numbers");
  input.set_dtype(v1::DTYPE_F32);
  input.add_shape(-1);
  input.add_shape(kNumbers);
  return graph;
}

Device& Cpu() {
  static Device& cpu = *CreateDevice("cpu", /*threads=*/1).value().release();
  return cpu;
}

enum class Source { kTfrecord, kTar };

// Files of random numbers.
class BlockShuffleTest : public testing::TestWithParam<Source> {
 protected:
  BlockShuffleTest() : seed_(std::random_device()()), random_(seed_) {
    folder_ = absl::StrCat(testing::TempDir(), "/block_shuffle");
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    spec_.set_seed(seed_);
    spec_.mutable_shuffle()->mutable_block()->set_samples(kBlockSamples);
    if (GetParam() == Source::kTfrecord) {
      spec_.mutable_tfrecord()->set_path(folder_);
      (*spec_.mutable_tfrecord()->mutable_inputs())["numbers"].mutable_fixed();
    } else {
      spec_.mutable_tar()->set_path(folder_);
      v1::TarInput& input = (*spec_.mutable_tar()->mutable_inputs())["numbers"];
      input.set_extension("npy");
      input.mutable_array();
    }
  }

  int64_t Pick(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }

  std::string PathOf(int file) const { return absl::StrCat(folder_, "/", file, ".tar"); }

  std::string RecordOf(int64_t number) {
    std::vector<float> numbers(kNumbers);
    for (float& value : numbers) value = static_cast<float>(random_());
    if (GetParam() == Source::kTfrecord) {
      wire::Example example;
      auto& list =
          *(*example.mutable_features()->mutable_feature())["numbers"].mutable_float_list();
      list.mutable_value()->Add(numbers.begin(), numbers.end());
      std::string framed;
      AppendTfrecord(example.SerializeAsString(), framed);
      return framed;
    }
    std::string header =
        absl::StrCat("{'descr': '<f4', 'fortran_order': False, 'shape': (", kNumbers, ",), }");
    header.resize(117, ' ');
    std::string npy =
        absl::StrCat(absl::string_view("\x93NUMPY\x01\x00\x76\x00", 10), header, "\n");
    npy.append(reinterpret_cast<const char*>(numbers.data()), kNumbers * sizeof(float));
    return TarMemberBytes(absl::StrCat(number, ".npy"), npy);
  }

  void Write(const std::vector<int64_t>& records_of_files) {
    for (size_t file = 0; file < records_of_files.size(); ++file) {
      std::string bytes;
      for (int64_t i = 0; i < records_of_files[file]; ++i) bytes += RecordOf(i);
      if (GetParam() == Source::kTar) bytes += TarEnd();
      std::ofstream(PathOf(static_cast<int>(file)), std::ios::binary) << bytes;
    }
  }

  std::unique_ptr<const Dataset> Open(int64_t block_bytes_max) const {
    return OpenDataset(spec_, graph_, {.block_bytes_max = block_bytes_max}).value();
  }

  SampleOrder Order(const Dataset& dataset) const {
    return SampleOrder::Create(spec_, FactsOf(dataset, spec_, graph_)).value();
  }

  std::vector<std::byte> Rows(const Dataset& dataset, const std::vector<SampleRef>& samples,
                              int64_t batch = 0) const {
    std::vector<std::byte> rows(samples.size() * kNumbers * 4);
    const absl::Span<std::byte> spans[] = {absl::MakeSpan(rows)};
    EXPECT_TRUE(dataset.ReadInOrder(batch, samples, spans).ok());
    return rows;
  }

  absl::Status ReadOne(const Dataset& dataset, int64_t sample) const {
    std::vector<std::byte> row(kNumbers * 4);
    const absl::Span<std::byte> spans[] = {absl::MakeSpan(row)};
    const SampleRef ref{.sample = sample};
    return dataset.ReadInOrder(/*batch=*/0, {&ref, 1}, spans);
  }

  const uint32_t seed_;
  const testing::ScopedTrace trace_{__FILE__, __LINE__, absl::StrCat("seed ", seed_)};
  std::mt19937_64 random_;
  std::string folder_;
  v1::DataSpec spec_;
  const v1::Graph graph_ = GraphOfNumbers();
};

INSTANTIATE_TEST_SUITE_P(All, BlockShuffleTest, testing::Values(Source::kTfrecord, Source::kTar));

TEST_P(BlockShuffleTest, EachShareGetsTheSamplesThatReadingOneByOneGives) {
  for (int round = 0; round < 6; ++round) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::vector<int64_t> records;
    for (int64_t file = Pick(1, 6); file > 0; --file) records.push_back(Pick(1, 300));
    records.push_back(128);
    Write(records);
    v1::BlockShuffle& block = *spec_.mutable_shuffle()->mutable_block();
    block.set_lanes(int64_t{1} << Pick(0, 3));
    block.set_window_blocks(Pick(1, 6));
    spec_.set_batch_size(block.lanes() * Pick(1, 12));
    spec_.set_last_batch(Pick(0, 1) == 0 ? v1::LAST_BATCH_DROP : v1::LAST_BATCH_CONTINUE);
    const auto plain = Open(0);
    // The least memory has room for no block, the most for all of them.
    const auto blocks = Open(int64_t{1} << Pick(16, 21));
    const SampleOrder order = Order(*plain);
    const int64_t first = Pick(0, spec_.batch_size() - 1);
    const int64_t samples = Pick(1, spec_.batch_size() - first);
    const int64_t first_step = Pick(0, 100), steps = 2 * plain->samples() / spec_.batch_size();
    const auto pipeline = InputPipeline::Create({.dataset = blocks.get(),
                                                 .graph = &graph_,
                                                 .device = &Cpu(),
                                                 .order = order,
                                                 .first_position = first,
                                                 .samples = samples,
                                                 .first_step = first_step,
                                                 .threads = static_cast<int>(Pick(1, 4))})
                              .value();
    for (int64_t step = first_step; step < first_step + steps; ++step) {
      const absl::StatusOr<InputBatch> batch = pipeline->Next();
      ASSERT_TRUE(batch.ok()) << batch.status();
      const std::vector<std::byte> expected =
          Rows(*plain, order.SamplesOfStep(step, first, samples));
      ASSERT_TRUE(std::ranges::equal(batch->rows[0], expected)) << "step " << step;
    }
  }
}

TEST_P(BlockShuffleTest, WorkersOfWholeLanesReadEachByteOncePerEpoch) {
  Write({500, 700, 420});
  spec_.set_batch_size(32);
  spec_.set_last_batch(v1::LAST_BATCH_CONTINUE);
  spec_.mutable_shuffle()->mutable_block()->set_lanes(4);
  int64_t file_bytes = 0, read_bytes = 0;
  for (int file = 0; file < 3; ++file)
    file_bytes += static_cast<int64_t>(fs::file_size(PathOf(file)));
  for (const int64_t first : {0, 16}) {
    const auto dataset = Open(1 << 20);
    const SampleOrder order = Order(*dataset);
    StageTimes times;
    SetStageTimes(&times);
    for (int64_t step = 0; step < 1620 / 32; ++step) {
      Rows(*dataset, order.SamplesOfStep(step, first, 16), step);
    }
    SetStageTimes(nullptr);
    read_bytes += times.read_bytes;
  }
  // Neighbouring lanes share the block at which the second one begins. It may be read for each of
  // them. The last 20 samples are left out, so some blocks are not read.
  EXPECT_LE(read_bytes, file_bytes + file_bytes * 3 * kBlockSamples / 1620);
  EXPECT_GE(read_bytes, file_bytes * 3 / 4);
}

TEST_P(BlockShuffleTest, ThePipelineReadsWholeBlocks) {
  Write({500, 700});
  spec_.set_batch_size(32);
  const auto dataset = Open(1 << 20);
  const auto pipeline = InputPipeline::Create({.dataset = dataset.get(),
                                               .graph = &graph_,
                                               .device = &Cpu(),
                                               .order = Order(*dataset),
                                               .samples = 32,
                                               .batches = 2})
                            .value();
  ASSERT_TRUE(pipeline->Next().ok());
  // Two batches have 64 KB at most. They have samples of most of the 16 blocks of a window.
  EXPECT_GE(pipeline->timing().read_bytes(), 5 * kBlockSamples * 1000);
}

TEST_P(BlockShuffleTest, CountingTargetsReadsNoWholeBlocks) {
  Write({500, 700});
  spec_.set_batch_size(32);
  const auto dataset = Open(1 << 20);
  std::vector<SampleRef> samples;
  for (int64_t i = 0; i < 10; ++i) samples.push_back({0, 100 * i});
  StageTimes times;
  SetStageTimes(&times);
  const auto counted =
      dataset->CountTargets({.graph = &graph_, .input = 0, .use = {.ignore_index = 1}}, samples);
  SetStageTimes(nullptr);
  EXPECT_TRUE(counted.ok()) << counted.status();
  EXPECT_LE(times.read_bytes, 10 * 1200);
}

TEST_P(BlockShuffleTest, ASubstituteIsReadAlone) {
  if (GetParam() == Source::kTar) GTEST_SKIP() << "members of tar files have no checksum";
  Write({2000});
  spec_.set_batch_size(16);
  spec_.set_damaged_max(1);
  {
    std::fstream file(PathOf(0), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(500);
    file.put('\x55').put('\xAA').put('\x55');
  }
  const auto dataset = Open(1 << 20);
  StageTimes times;
  SetStageTimes(&times);
  EXPECT_TRUE(ReadOne(*dataset, 0).ok());
  SetStageTimes(nullptr);
  EXPECT_EQ(dataset->substituted(), 1);
  // The first block, the damaged record again, and its substitute.
  EXPECT_LE(times.read_bytes, (kBlockSamples + 2) * 1100);
}

TEST_P(BlockShuffleTest, AChangedByteGivesTheErrorOfReadingOneByOne) {
  if (GetParam() == Source::kTar) GTEST_SKIP() << "members of tar files have no checksum";
  Write({100, 100});
  spec_.set_batch_size(16);
  {
    std::fstream file(PathOf(1), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(50'000);
    file.put('\x55').put('\xAA').put('\x55');
  }
  const auto plain = Open(0), blocks = Open(1 << 20);
  int damaged = 0;
  for (int64_t sample = 0; sample < 200; ++sample) {
    const absl::Status expected = ReadOne(*plain, sample);
    EXPECT_EQ(ReadOne(*blocks, sample), expected);
    if (!expected.ok()) ++damaged;
  }
  EXPECT_EQ(damaged, 1);
}

TEST_P(BlockShuffleTest, AFileThatIsCutGivesTheErrorsOfReadingOneByOne) {
  Write({100, 100});
  spec_.set_batch_size(16);
  const auto plain = Open(0), blocks = Open(1 << 20);
  // Opens both files, so that their size is not compared again.
  for (const auto& dataset : {plain.get(), blocks.get()}) Rows(*dataset, {{0, 0}, {0, 100}});
  fs::resize_file(PathOf(1), Pick(1, fs::file_size(PathOf(1)) / 2));
  int failed = 0;
  for (int64_t sample = 0; sample < 200; ++sample) {
    const absl::Status expected = ReadOne(*plain, sample);
    const absl::Status status = ReadOne(*blocks, sample);
    // The first block of the file was read as a whole before.
    if (status.ok() && sample >= 70 && sample < 140) continue;
    EXPECT_EQ(status, expected);
    if (!expected.ok()) ++failed;
  }
  EXPECT_GT(failed, 0);
}

}  // namespace
}  // namespace muster::block_shuffle_test
