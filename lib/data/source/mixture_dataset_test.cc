#include "lib/data/source/mixture_dataset.h"

#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "lib/data/data_fault.h"
#include "lib/data/image_rows.h"
#include "lib/data/sample_bytes.h"
#include "lib/data/source/open_dataset.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"

namespace muster::mixture_dataset_test {
namespace {

// The row of a sample is {name, epoch, sample}; that of a held-out sample is {name, -1, sample}.
// One sample is damaged.
class Part : public Dataset {
 public:
  struct Options {
    int32_t name = 0;
    int64_t samples = 0, evaluation_samples = 0;
    std::string fingerprint = "";
    std::vector<kernels::ByteValues> values = {};
    int64_t damaged = -1;
    bool is_slow = false;
  };
  explicit Part(Options options) : options_(std::move(options)) {}

  int64_t samples() const override { return options_.samples; }
  int64_t evaluation_samples() const override { return options_.evaluation_samples; }
  std::string fingerprint() const override { return options_.fingerprint; }
  bool is_slow() const override { return options_.is_slow; }
  absl::Span<const kernels::ByteValues> row_values(int) const override { return options_.values; }

  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    std::vector<int32_t> values;
    for (const auto& [epoch, sample] : samples) {
      EXPECT_TRUE(epoch < 0 || (0 <= sample && sample < options_.samples)) << sample;
      if (sample == options_.damaged) return DataDamaged("data.npy.x", "f", sample, 7, "is bad");
      for (const int64_t value : {int64_t{options_.name}, epoch, sample}) {
        values.push_back(static_cast<int32_t>(value));
      }
    }
    if (rows[1].empty()) return absl::OkStatus();
    EXPECT_EQ(rows[1].size(), 4 * values.size());
    std::memcpy(rows[1].data(), values.data(), rows[1].size());
    return absl::OkStatus();
  }
  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    EXPECT_LE(first + count, options_.evaluation_samples);
    std::vector<int64_t> samples(count);
    std::iota(samples.begin(), samples.end(), first);
    return Read(SamplesOf(-1, samples), rows);
  }

 private:
  const Options options_;
};

// An f32 input "unread" and an i32 input "row" of three numbers.
v1::Graph GraphOfRows() {
  v1::Graph graph;
  for (const char* name : {"unread", "row"}) {
    v1::GraphInput& input = *graph.add_inputs();
    input.set_name(name);
    input.set_dtype(v1::DTYPE_I32);
    for (const int64_t size : {-1, 3}) input.add_shape(size);
  }
  return graph;
}

absl::StatusOr<std::unique_ptr<const Dataset>> Mix(const std::vector<Part::Options>& parts) {
  std::vector<std::unique_ptr<const Dataset>> datasets;
  for (const Part::Options& part : parts) datasets.push_back(std::make_unique<Part>(part));
  return MixDatasets(std::move(datasets), GraphOfRows());
}

TEST(MixtureDatasetTest, NumbersTheSamplesOfItsPartsOneAfterTheOther) {
  const auto dataset =
      Mix({{.name = 1, .samples = 4}, {.name = 2, .samples = 1}, {.name = 3, .samples = 5}})
          .value();
  EXPECT_EQ(dataset->samples(), 10);
  EXPECT_EQ(dataset->part_samples(), (std::vector<int64_t>{4, 1, 5}));
  std::vector<int32_t> row(3 * 6);
  const std::vector<absl::Span<std::byte>> rows = {{}, BytesOf(row)};
  ASSERT_TRUE(dataset->Read({{{0, 3}, {0, 0}, {7, 4}, {2, 5}, {2, 9}, {1, 0}}}, rows).ok());
  EXPECT_EQ(row, (std::vector<int32_t>{1, 0, 3, 1, 0, 0, 2, 7, 0, 3, 2, 0, 3, 2, 4, 1, 1, 0}));
}

TEST(MixtureDatasetTest, EvaluatesTheHeldOutSamplesOfAllParts) {
  const auto dataset = Mix({{.name = 1, .samples = 1, .evaluation_samples = 2},
                            {.name = 2, .samples = 1},
                            {.name = 3, .samples = 1, .evaluation_samples = 3}})
                           .value();
  ASSERT_EQ(dataset->evaluation_samples(), 5);
  std::vector<int32_t> row(3 * 3);
  const std::vector<absl::Span<std::byte>> rows = {{}, BytesOf(row)};
  ASSERT_TRUE(dataset->ReadEvaluation(1, 3, rows).ok());
  EXPECT_EQ(row, (std::vector<int32_t>{1, -1, 1, 3, -1, 0, 3, -1, 1}));
  EXPECT_TRUE(dataset->ReadEvaluation(5, 0, rows).ok());
}

TEST(MixtureDatasetTest, PartsMustReadInputsAlike) {
  kernels::ByteValues values = {};
  const Part::Options bytes{.samples = 1, .values = {values}};
  values[3] = 1;
  const Part::Options others{.samples = 1, .values = {values}};
  EXPECT_EQ((*Mix({bytes, bytes}))->row_values(0).size(), 1);
  for (const Part::Options& other : {others, Part::Options{.samples = 1}}) {
    const absl::Status status = Mix({bytes, bytes, other}).status();
    EXPECT_EQ(ReasonOf(status), "DATA_INVALID");
    EXPECT_EQ(FaultsOf(status).at(0).field, "data.mixture.parts[2]");
  }
}

TEST(MixtureDatasetTest, IsSlowIfAPartIs) {
  EXPECT_FALSE((*Mix({{.samples = 1}, {.samples = 1}}))->is_slow());
  EXPECT_TRUE((*Mix({{.samples = 1}, {.samples = 1, .is_slow = true}}))->is_slow());
}

TEST(MixtureDatasetTest, CountsTheTargetsOfAllParts) {
  const auto dataset = Mix({{.name = 1, .samples = 4, .evaluation_samples = 2},
                            {.name = 2, .samples = 5, .evaluation_samples = 2}})
                           .value();
  const v1::Graph graph = GraphOfRows();
  // Two is the name of a part, and the number of a sample of each.
  const Dataset::Target target{.graph = &graph, .input = 1, .use = {.ignore_index = 2}};
  const std::vector<SampleRef> samples = {{0, 2}, {0, 3}, {0, 4}, {0, 6}, {1, 0}};
  EXPECT_EQ(*dataset->CountTargets(target, samples), 15 - 1 - 1 - 2);
  EXPECT_EQ(*dataset->CountTargets(target, samples),
            *dataset->Dataset::CountTargets(target, samples));
  EXPECT_EQ(*dataset->CountEvaluationTargets(target, 1, 3), 9 - 2);
}

TEST(MixtureDatasetTest, AnErrorNamesThePart) {
  const auto dataset = Mix({{.samples = 2}, {.samples = 2, .damaged = 1}}).value();
  const std::vector<absl::Span<std::byte>> rows(2);
  const absl::Status status = dataset->Read(SamplesOf(0, {0, 3}), rows);
  EXPECT_EQ(ReasonOf(status), "DATA_DAMAGED");
  EXPECT_EQ(status.message(), "data.mixture.parts[1].data.npy.x: f: record 1 at byte 7: is bad");
  EXPECT_EQ(FaultsOf(status).at(0).field, "data.mixture.parts[1].data.npy.x");
}

TEST(MixtureDatasetTest, TheFingerprintIsOfAllPartsInTheirOrder) {
  const auto of = [](std::vector<Part::Options> parts) { return (*Mix(parts))->fingerprint(); };
  const Part::Options a{.samples = 1, .fingerprint = "a"}, b{.samples = 1, .fingerprint = "b"};
  EXPECT_EQ(of({a, b}), of({a, b}));
  EXPECT_EQ(of({a, b}).size(), 32);
  EXPECT_NE(of({a, b}), of({b, a}));
  EXPECT_NE(of({a, b}), of({a, {.samples = 1}}));
  EXPECT_EQ(of({{.samples = 1}, {.samples = 1}}), "");
}

TEST(MixtureDatasetTest, AJobOpensThePartsOfItsMixture) {
  v1::Graph graph;
  for (const char* name : {"input", "target"}) {
    v1::GraphInput& input = *graph.add_inputs();
    input.set_name(name);
    input.set_dtype(v1::DTYPE_F32);
    for (const int64_t size : {-1, 1}) input.add_shape(size);
  }
  v1::DataSpec spec;
  for (const int64_t samples : {3, 5}) {
    v1::MixturePart& part = *spec.mutable_mixture()->add_parts();
    part.set_weight(1);
    part.mutable_data()->mutable_linear()->set_samples(samples);
    part.mutable_data()->mutable_linear()->set_slope(1);
  }
  const auto dataset = OpenDataset(spec, graph).value();
  EXPECT_EQ(dataset->part_samples(), (std::vector<int64_t>{3, 5}));
  std::vector<float> input(2);
  const std::vector<absl::Span<std::byte>> rows = {BytesOf(input), {}};
  ASSERT_TRUE(dataset->Read(SamplesOf(0, {0, 3}), rows).ok());
  EXPECT_NE(input[0], input[1]) << "sample 0 of both parts";

  spec.mutable_mixture()->mutable_parts(1)->mutable_data()->mutable_linear()->set_samples(0);
  EXPECT_EQ(FaultsOf(OpenDataset(spec, graph).status()).at(0).field,
            "data.mixture.parts[1].data.linear.samples");
}

TEST(MixtureDatasetTest, TheFingerprintOfImagesHasTheVersionOfTheirPixels) {
  const auto dataset = Mix({{.samples = 1, .fingerprint = "a"}, {.samples = 1}}).value();
  const auto added = [&](const v1::DataSpec& data) {
    const std::string whole = FactsOf(*dataset, data, GraphOfRows()).fingerprint();
    return std::string(absl::StripPrefix(whole, dataset->fingerprint()));
  };
  v1::DataSpec images, tfrecord, tar, mixture;
  images.mutable_images();
  v1::ExampleInput& example = (*tfrecord.mutable_tfrecord()->mutable_inputs())["input"];
  v1::TarInput& member = (*tar.mutable_tar()->mutable_inputs())["input"];
  mixture.mutable_mixture()->add_parts()->mutable_data()->mutable_text();
  v1::DataSpec& part = *mixture.mutable_mixture()->add_parts()->mutable_data();
  for (const v1::DataSpec& data : {tfrecord, tar, mixture}) EXPECT_EQ(added(data), "");
  example.mutable_image();
  member.mutable_image();
  part = images;
  for (const v1::DataSpec& data : {images, tfrecord, tar, mixture}) {
    EXPECT_EQ(added(data), absl::StrCat(":pixels-", kImageRowsVersion));
  }
}

TEST(MixtureDatasetTest, FactsHaveThePartsAndTheBlock) {
  const auto dataset = Mix({{.samples = 4, .fingerprint = "a"}, {.samples = 90'000'000}}).value();
  v1::DataSpec data;
  v1::DatasetFacts facts = FactsOf(*dataset, data, GraphOfRows());
  EXPECT_EQ(facts.samples(), 90'000'004);
  EXPECT_EQ(facts.fingerprint(), dataset->fingerprint());
  EXPECT_EQ(std::vector<int64_t>(facts.part_samples().begin(), facts.part_samples().end()),
            (std::vector<int64_t>{4, 90'000'000}));
  EXPECT_EQ(facts.block_samples(), 0);
  data.mutable_shuffle()->mutable_block();
  EXPECT_EQ(FactsOf(*dataset, data, GraphOfRows()).block_samples(), (8 << 20) / 24);
  data.mutable_shuffle()->mutable_block()->set_samples(17);
  EXPECT_EQ(FactsOf(*dataset, data, GraphOfRows()).block_samples(), 17);
}

}  // namespace
}  // namespace muster::mixture_dataset_test
