#include "lib/data/source/tfrecord_dataset.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/data/dataset.h"
#include "lib/data/format/testing/example.pb.h"
#include "lib/data/format/tfrecord.h"
#include "lib/data/input_use.h"
#include "lib/data/order/sample_order.h"
#include "lib/data/sample_bytes.h"
#include "lib/data/stage_times.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::tfrecord_dataset_test {
namespace {

namespace fs = std::filesystem;
using Features = google::protobuf::Map<std::string, wire::Feature>;

// A model that reads f32 numbers [B, 3], ids [B, 4] below 50, and targets [B, 4] below 30 with the
// ignore_index -100.
v1::Graph TextModel() {
  v1::Graph graph;
  auto input = [&](const char* name, v1::DType dtype, int64_t elements) {
    v1::GraphInput& added = *graph.add_inputs();
    added.set_name(name);
    added.set_dtype(dtype);
    added.add_shape(-1);
    added.add_shape(elements);
  };
  input("numbers", v1::DTYPE_F32, 3);
  input("ids", v1::DTYPE_I32, 4);
  input("targets", v1::DTYPE_I32, 4);
  auto parameter = [&](const char* name, int64_t rows) {
    graph.add_parameters()->set_name(name);
    graph.mutable_parameters()->rbegin()->add_shape(rows);
    graph.mutable_parameters()->rbegin()->add_shape(6);
  };
  parameter("table", 50);
  parameter("head", 30);
  auto node = [&](const char* op, std::vector<const char*> inputs,
                  std::vector<const char*> outputs) -> v1::Node& {
    v1::Node& added = *graph.add_nodes();
    added.set_name(outputs[0]);
    added.set_op(op);
    for (const char* name : inputs) added.add_inputs(name);
    for (const char* name : outputs) added.add_outputs(name);
    return added;
  };
  node("Embedding", {"ids", "table"}, {"embedded"});
  node("Linear", {"embedded", "head"}, {"logits"});
  auto& loss = node("SoftmaxCrossEntropy", {"logits", "targets"}, {"loss", "lse"});
  (*loss.mutable_attributes())["ignore_index"].set_i(-100);
  graph.set_loss("loss");
  return graph;
}

// A model that reads f32 pixels [B, 1, 2, 2].
v1::Graph PixelModel() {
  v1::Graph graph;
  v1::GraphInput& input = *graph.add_inputs();
  input.set_name("pixels");
  input.set_dtype(v1::DTYPE_F32);
  for (int64_t size : {-1, 1, 2, 2}) input.add_shape(size);
  return graph;
}

void Add(Features& features, const std::string& name, const std::vector<int64_t>& values) {
  auto* list = features[name].mutable_int64_list();
  list->clear_value();
  for (int64_t value : values) list->add_value(value);
}
void Add(Features& features, const std::string& name, const std::vector<float>& values) {
  auto* list = features[name].mutable_float_list();
  list->clear_value();
  for (float value : values) list->add_value(value);
}
void Add(Features& features, const std::string& name, const std::string& value) {
  features[name].mutable_bytes_list()->clear_value();
  features[name].mutable_bytes_list()->add_value(value);
}

template <typename T>
std::string RawBytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Copies the first four bytes of a "file" and adds the epoch in training. A file that begins with
// "bad" is damaged.
class FakeImages : public ImageRows {
 public:
  absl::Status Training(absl::Span<const std::byte> file, SampleRef sample,
                        absl::Span<uint8_t> to) const override {
    return Make(file, static_cast<uint8_t>(sample.epoch), to);
  }
  absl::Status Evaluation(absl::Span<const std::byte> file, absl::Span<uint8_t> to) const override {
    return Make(file, 0, to);
  }
  absl::Span<const kernels::ByteValues> values() const override {
    return absl::MakeConstSpan(&values_, 1);
  }

 private:
  static absl::Status Make(absl::Span<const std::byte> file, uint8_t add, absl::Span<uint8_t> to) {
    const std::string text(reinterpret_cast<const char*>(file.data()), file.size());
    if (absl::StartsWith(text, "bad")) return absl::InvalidArgumentError("not an image");
    for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<uint8_t>(text[i] + add);
    return absl::OkStatus();
  }
  kernels::ByteValues values_ = {};
};

absl::StatusOr<std::unique_ptr<const ImageRows>> MakeFakeImages(const v1::ImageSpec&, uint64_t,
                                                                int channels, int height,
                                                                int width) {
  EXPECT_EQ(channels * height * width, 4);
  return std::make_unique<FakeImages>();
}

class TfrecordDatasetTest : public testing::Test {
 protected:
  TfrecordDatasetTest() : folder_(absl::StrCat(testing::TempDir(), "/tfrecord")) {
    fs::remove_all(folder_);
    fs::create_directories(folder_ + "/data");
    auto& inputs = *spec_.mutable_tfrecord()->mutable_inputs();
    inputs["numbers"].mutable_fixed();
    inputs["ids"].mutable_variable()->set_feature("input_ids");
    inputs["ids"].mutable_variable()->set_pad(7);
    auto& scatter = *inputs["targets"].mutable_scatter();
    scatter.set_positions("positions");
    scatter.set_values("values");
    scatter.set_weights("weights");
    spec_.mutable_tfrecord()->set_path(Path());
  }

  std::string Path(const std::string& name = "a.tfrecord") const {
    return absl::StrCat(folder_, "/data/", name);
  }

  // A sample that is made from its number, except for the changes.
  static std::string Example(int number, const std::function<void(Features&)>& change = {}) {
    wire::Example example;
    Features& features = *example.mutable_features()->mutable_feature();
    const auto value = static_cast<float>(number);
    Add(features, "numbers", std::vector<float>{value, value + 0.5f, -value});
    Add(features, "input_ids", std::vector<int64_t>(number % 6, number % 50));
    Add(features, "positions", std::vector<int64_t>{number % 4, 0});
    Add(features, "values", std::vector<int64_t>{number % 30, 0});
    Add(features, "weights", std::vector<float>{1, 0});
    if (change) change(features);
    return example.SerializeAsString();
  }

  void Write(const std::vector<std::string>& examples, const std::string& name = "a.tfrecord") {
    std::string content;
    for (const std::string& example : examples) AppendTfrecord(example, content);
    std::ofstream(Path(name), std::ios::binary) << content;
  }
  void WriteSamples(int first, int count, const std::string& name = "a.tfrecord") {
    std::vector<std::string> examples;
    for (int i = 0; i < count; ++i) examples.push_back(Example(first + i));
    Write(examples, name);
  }

  absl::StatusOr<std::unique_ptr<const Dataset>> Open(const v1::Graph& graph = TextModel()) {
    return OpenTfrecordDataset(spec_, graph, options_, MakeFakeImages);
  }

  // The rows of training samples as text.
  static std::string Rows(const Dataset& dataset, const std::vector<int64_t>& samples) {
    std::vector<float> numbers(3 * samples.size());
    std::vector<int32_t> ids(4 * samples.size()), targets(4 * samples.size());
    const absl::Status status =
        dataset.Read(SamplesOf(0, samples), {BytesOf(numbers), BytesOf(ids), BytesOf(targets)});
    if (!status.ok()) return std::string(status.message());
    std::string text;
    for (size_t i = 0; i < samples.size(); ++i) {
      for (size_t k = 0; k < 3; ++k) absl::StrAppend(&text, numbers[3 * i + k], " ");
      for (size_t k = 0; k < 4; ++k) absl::StrAppend(&text, ids[4 * i + k], " ");
      for (size_t k = 0; k < 4; ++k) absl::StrAppend(&text, targets[4 * i + k], " ");
      text.back() = '\n';
    }
    return text;
  }
  static std::string Expected(int number) {
    std::string text = absl::StrCat(number, " ", number + 0.5, " ", number == 0 ? "-0" : "",
                                    number == 0 ? "" : absl::StrCat(-number), " ");
    for (int k = 0; k < 4; ++k) absl::StrAppend(&text, k < number % 6 ? number % 50 : 7, " ");
    for (int k = 0; k < 4; ++k) absl::StrAppend(&text, k == number % 4 ? number % 30 : -100, " ");
    text.back() = '\n';
    return text;
  }

  // Opens the data, reads all samples, and returns the first error.
  absl::Status Status(const v1::Graph& graph = TextModel()) {
    const auto dataset = Open(graph);
    if (!dataset.ok()) return dataset.status();
    std::vector<int64_t> samples((*dataset)->samples());
    std::iota(samples.begin(), samples.end(), 0);
    std::vector<std::vector<std::byte>> memory;
    std::vector<absl::Span<std::byte>> rows;
    for (const int64_t bytes : RowBytes(**dataset, graph)) {
      rows.push_back(absl::MakeSpan(memory.emplace_back(bytes * samples.size())));
    }
    return (*dataset)->Read(SamplesOf(0, samples), rows);
  }
  std::string Fault() { return std::string(Status().message()); }
  // The error of a record that is number 2 of its file.
  std::string Fault(const std::function<void(Features&)>& change) {
    Write({Example(0), Example(1), Example(2, change), Example(3)});
    const absl::Status status = Status();
    EXPECT_EQ(ReasonOf(status), "DATA_DAMAGED") << status;
    const size_t offset = Example(0).size() + Example(1).size() + 32;
    const std::string place =
        absl::StrCat("data.tfrecord.path: ", Path(), ": record 2 at byte ", offset, ": ");
    EXPECT_TRUE(absl::StartsWith(status.message(), place)) << status;
    return std::string(status.message()).substr(std::min(place.size(), status.message().size()));
  }

  const std::string folder_;
  v1::DataSpec spec_;
  DataOptions options_;
};

TEST_F(TfrecordDatasetTest, FillsRowsFromFixedVariableAndScatteredFeatures) {
  WriteSamples(0, 10);
  const auto dataset = Open().value();
  EXPECT_EQ(dataset->samples(), 10);
  EXPECT_EQ(dataset->evaluation_samples(), 0);
  EXPECT_EQ(Rows(*dataset, {3, 5, 0}),
            "3 3.5 -3 3 3 3 7 -100 -100 -100 3\n"
            "5 5.5 -5 5 5 5 5 -100 5 -100 -100\n"
            "0 0.5 -0 7 7 7 7 0 -100 -100 -100\n");
  EXPECT_EQ(Rows(*dataset, {9}), Expected(9));
}

TEST_F(TfrecordDatasetTest, ReadsSamplesInAnyOrderFromAllFiles) {
  WriteSamples(0, 700, "b.tfrecord");
  WriteSamples(700, 300, "c.tfrecord");
  Write({}, "empty.tfrecord");
  for (const char* path : {"", "?.tfrecord", "*"}) {
    spec_.mutable_tfrecord()->set_path(Path(path));
    const auto dataset = Open().value();
    ASSERT_EQ(dataset->samples(), 1000);
    const auto bytes = fs::file_size(Path("b.tfrecord")) + fs::file_size(Path("c.tfrecord"));
    EXPECT_EQ(dataset->mean_stored_bytes(), bytes / 1000);
    std::vector<int64_t> samples(1000);
    std::iota(samples.begin(), samples.end(), 0);
    std::mt19937 random(3);
    for (int round = 0; round < 4; ++round) {
      std::string expected;
      for (const int64_t sample : samples) expected += Expected(static_cast<int>(sample));
      ASSERT_EQ(Rows(*dataset, samples), expected) << round;
      std::ranges::shuffle(samples, random);
      if (round == 2) samples = {5, 5, 6, 5, 7, 699, 700, 701, 0, 999};
    }
  }
}

TEST_F(TfrecordDatasetTest, ReadsLargeRecords) {
  std::vector<std::string> examples;
  for (int i = 0; i < 6; ++i) {
    examples.push_back(Example(i, [&](Features& features) {
      Add(features, "other", std::string(i % 2 == 0 ? 400'000 : 10, 'x'));
    }));
  }
  Write(examples);
  const auto dataset = Open().value();
  EXPECT_EQ(Rows(*dataset, {0, 1, 2, 3, 4, 5}),
            Expected(0) + Expected(1) + Expected(2) + Expected(3) + Expected(4) + Expected(5));
}

TEST_F(TfrecordDatasetTest, HoldsOutRecordsFromTheEndOrFromOtherFiles) {
  WriteSamples(0, 10);
  WriteSamples(20, 3, "eval.tfrecord");
  spec_.mutable_tfrecord()->set_holdout(0.2);
  auto numbers = [&](const Dataset& dataset, int64_t first, int64_t count) {
    std::vector<float> numbers(3 * count);
    EXPECT_TRUE(dataset.ReadEvaluation(first, count, {BytesOf(numbers), {}, {}}).ok());
    return numbers;
  };
  auto dataset = Open().value();
  EXPECT_EQ(dataset->samples(), 8);
  EXPECT_EQ(dataset->evaluation_samples(), 2);
  EXPECT_THAT(numbers(*dataset, 1, 1), testing::ElementsAre(9, 9.5, -9));
  const std::string fingerprint = dataset->fingerprint();

  spec_.mutable_tfrecord()->set_eval_path(Path("eval.tfrecord"));
  EXPECT_EQ(Fault(), "data.tfrecord.holdout: cannot be given together with eval_path");
  spec_.mutable_tfrecord()->set_holdout(0);
  dataset = Open().value();
  EXPECT_EQ(dataset->samples(), 10);
  EXPECT_EQ(dataset->evaluation_samples(), 3);
  EXPECT_THAT(numbers(*dataset, 1, 2), testing::ElementsAre(21, 21.5, -21, 22, 22.5, -22));
  EXPECT_TRUE(absl::StartsWith(dataset->fingerprint(), fingerprint));
  EXPECT_NE(dataset->fingerprint(), fingerprint);
  WriteSamples(20, 0, "eval.tfrecord");
  EXPECT_THAT(Fault(), testing::HasSubstr("eval.tfrecord: holds no record"));
}

TEST_F(TfrecordDatasetTest, AFixedFeatureIsConverted) {
  auto& inputs = *spec_.mutable_tfrecord()->mutable_inputs();
  inputs["ids"].mutable_fixed()->set_feature("raw");
  inputs["targets"].mutable_fixed()->set_feature("raw");
  auto rows = [&](auto numbers, auto raw) {
    Write({Example(1, [&](Features& features) {
      Add(features, "numbers", numbers);
      Add(features, "raw", raw);
    })});
    return Rows(*Open().value(), {0});
  };
  using Integers = std::vector<int64_t>;
  const std::string bytes("\x01\x02\x03\x04", 4);
  EXPECT_EQ(rows(Integers{1, -2, 1 << 20}, Integers{1, 2, 3, 4}),
            "1 -2 1.04858e+06 1 2 3 4 1 2 3 4\n");
  EXPECT_EQ(rows(RawBytes(std::vector<float>{1.5, 2, 3}), RawBytes(std::vector<int>{9, 8, 7, 6})),
            "1.5 2 3 9 8 7 6 9 8 7 6\n");
  EXPECT_EQ(rows(std::string("\x00\x80\xff", 3), bytes), "0 128 255 1 2 3 4 1 2 3 4\n");
  inputs["numbers"].mutable_fixed()->set_offset(0.5);
  inputs["ids"].mutable_fixed()->set_offset(-1);
  EXPECT_EQ(rows(std::vector<float>{1, 2, 3}, bytes), "1.5 2.5 3.5 0 1 2 3 1 2 3 4\n");
  EXPECT_EQ(rows(RawBytes(std::vector<float>{1, 2, 3}), bytes), "1.5 2.5 3.5 0 1 2 3 1 2 3 4\n");
  EXPECT_EQ(rows(Integers{1, 2, 3}, bytes), "1.5 2.5 3.5 0 1 2 3 1 2 3 4\n");
}

TEST_F(TfrecordDatasetTest, ARecordThatDoesNotFitIsDamage) {
  using Integers = std::vector<int64_t>;
  using Floats = std::vector<float>;
  const auto change = [](const std::string& name, auto value) {
    return [name, value](Features& features) {
      features.erase(name);
      Add(features, name, value);
    };
  };
  EXPECT_EQ(Fault(change("numbers", Floats{1, 2})),
            "feature 'numbers': has 2 floats; the model's numbers takes 3");
  EXPECT_EQ(Fault(change("numbers", Integers{1, 2, 3, 4})),
            "feature 'numbers': has 4 integers; the model's numbers takes 3");
  EXPECT_EQ(Fault(change("numbers", std::string("12345"))),
            "feature 'numbers': has 5 bytes; the model's numbers takes 3");
  EXPECT_EQ(Fault([](Features& features) { features.erase("numbers"); }),
            "feature 'numbers': is missing; the model's numbers takes 3 numbers");
  EXPECT_EQ(Fault(change("input_ids", Integers{1, 50})),
            "feature 'input_ids': number 1 is 50; the model's ids takes 0 to 49");
  EXPECT_EQ(Fault(change("input_ids", Integers{-1})),
            "feature 'input_ids': number 0 is -1; the model's ids takes 0 to 49");
  EXPECT_EQ(Fault(change("input_ids", Integers{std::numeric_limits<int64_t>::min()})),
            "feature 'input_ids': number 0 is -9223372036854775808; the model's ids takes 0 to 49");
  EXPECT_EQ(Fault(change("input_ids", Floats{1})),
            "feature 'input_ids': holds floats, but the model's ids takes ids");
  EXPECT_EQ(Fault(change("input_ids", std::string("1"))),
            "feature 'input_ids': holds bytes, but the model's ids takes ids");
  EXPECT_EQ(Fault(change("positions", Integers{4, 0})),
            "feature 'positions': number 0 is 4; positions are 0 to 3");
  EXPECT_EQ(Fault(change("positions", Integers{-1, 0})),
            "feature 'positions': number 0 is -1; positions are 0 to 3");
  EXPECT_EQ(Fault(change("positions", Integers{0})),
            "feature 'weights': has 2 numbers for the 1 of 'positions'");
  EXPECT_EQ(Fault(change("values", Integers{1, 2, 3})),
            "feature 'values': has 3 numbers for the 2 of 'positions'");
  EXPECT_EQ(Fault(change("values", Integers{30, 2})),
            "feature 'values': number 0 is 30; the model's targets takes 0 to 29");
  EXPECT_EQ(Fault(change("values", Floats{3, 2})),
            "feature 'values': is floats, but a list of integers is needed");
  EXPECT_EQ(Fault(change("positions", Integers{0, 1, 2, 3, 0})),
            "feature 'positions': has 5 numbers, more than the 4 of the model's targets");
  // Padding of weight 0 may have any position and value.
  Write({Example(2, change("positions", Integers{2, 99}))});
  EXPECT_EQ(Fault(), "");
  spec_.mutable_tfrecord()->mutable_inputs()->at("ids").mutable_fixed()->set_feature("input_ids");
  Write({Example(0, change("input_ids", Integers{1, 2, 3, 50}))});
  spec_.mutable_tfrecord()->mutable_inputs()->at("ids").mutable_fixed()->set_offset(-1);
  EXPECT_EQ(Fault(), "");
}

TEST_F(TfrecordDatasetTest, AChangedByteIsFoundByItsChecksum) {
  std::string content;
  for (int i = 0; i < 5; ++i) AppendTfrecord(Example(i), content);
  const auto dataset_of = [&](bool checksums) {
    std::ofstream(Path(), std::ios::binary) << content;
    spec_.mutable_tfrecord()->set_checksums(checksums);
    return Open().value();
  };
  const size_t at = content.find(RawBytes(std::vector<float>{2.5}));
  content[at] ^= 1;
  const std::string place =
      absl::StrCat("data.tfrecord.path: ", Path(), ": record 2 at byte ",
                   Example(0).size() + Example(1).size() + 32, ": the checksum differs");
  EXPECT_EQ(Rows(*dataset_of(true), {0, 1, 2, 3}), place);
  EXPECT_EQ(Rows(*dataset_of(true), {2}), place);
  EXPECT_EQ(Rows(*dataset_of(true), {3, 1}), Expected(3) + Expected(1));
  EXPECT_EQ(Rows(*dataset_of(false), {3, 1}), Expected(3) + Expected(1));
  EXPECT_THAT(Rows(*dataset_of(false), {2}), testing::StartsWith("2 2.5 -2 "));
}

TEST_F(TfrecordDatasetTest, ARecordThatCannotBeFoundFailsTheOpening) {
  WriteSamples(0, 3);
  const auto bytes = fs::file_size(Path());
  fs::resize_file(Path(), bytes - 1);
  EXPECT_EQ(ReasonOf(Open().status()), "DATA_DAMAGED");
  EXPECT_THAT(std::string(Open().status().message()), testing::HasSubstr("record 2 at byte"));
}

TEST_F(TfrecordDatasetTest, ASavedIndexIsUsedUntilAFileChanges) {
  options_.index_folder = folder_ + "/index";
  WriteSamples(0, 5);
  const std::string fingerprint = Open().value()->fingerprint();
  const auto time = fs::last_write_time(Path());
  // A damaged length is not noticed, because nothing reads it again.
  std::fstream(Path(), std::ios::in | std::ios::out | std::ios::binary) << '\xff';
  fs::last_write_time(Path(), time);
  auto dataset = Open();
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->fingerprint(), fingerprint);
  EXPECT_EQ(Rows(**dataset, {0, 4}), Expected(0) + Expected(4));
  WriteSamples(0, 6);
  EXPECT_EQ(Open().value()->samples(), 6);
  EXPECT_NE(Open().value()->fingerprint(), fingerprint);
}

TEST_F(TfrecordDatasetTest, AnIndexThatCannotBeSavedIsNoError) {
  WriteSamples(0, 5);
  options_.index_folder = Path();
  EXPECT_TRUE(Open().ok());
}

TEST_F(TfrecordDatasetTest, RefusesMoreRecordsThanMemoryMayHold) {
  WriteSamples(0, 10);
  options_.held_bytes_max = 160;
  EXPECT_TRUE(Open().ok());
  options_.held_bytes_max = 159;
  EXPECT_TRUE(absl::IsResourceExhausted(Open().status())) << Open().status();
}

TEST_F(TfrecordDatasetTest, AFeatureThatNoRecordHasIsRefused) {
  WriteSamples(0, 10);
  auto& inputs = *spec_.mutable_tfrecord()->mutable_inputs();
  inputs["ids"].mutable_variable()->set_feature("input_id");
  EXPECT_EQ(Fault(),
            absl::StrCat("data.tfrecord.inputs.ids: ", Path(),
                         ": no feature 'input_id' in the first 10 records; the first one has: "
                         "input_ids (integers), numbers (floats), positions (integers), values "
                         "(integers), weights (floats)"));
}

TEST_F(TfrecordDatasetTest, AFillOfZeroIsNotTheDefault) {
  Write({Example(2)});
  auto& scatter = *(*spec_.mutable_tfrecord()->mutable_inputs())["targets"].mutable_scatter();
  EXPECT_THAT(Rows(*Open().value(), {0}), testing::EndsWith(" -100 -100 2 -100\n"));
  scatter.set_fill(0);
  EXPECT_THAT(Rows(*Open().value(), {0}), testing::EndsWith(" 0 0 2 0\n"));
}

TEST_F(TfrecordDatasetTest, RulesMustFitTheModel) {
  WriteSamples(0, 10);
  auto& inputs = *spec_.mutable_tfrecord()->mutable_inputs();
  const auto good = inputs;
  inputs["more"];
  EXPECT_EQ(Fault(),
            "data.tfrecord.inputs.more: the model has no such input; it reads numbers, ids, "
            "targets");
  inputs = good;
  inputs.erase("ids");
  EXPECT_EQ(Fault(), "data.tfrecord.inputs.ids: required: the feature of the model's ids, [-1, 4]");
  inputs = good;
  inputs["ids"].mutable_variable()->set_pad(50);
  EXPECT_EQ(Fault(),
            "data.tfrecord.inputs.ids.variable.pad: is 50, but the model's ids takes 0 to 49");
  inputs["ids"].mutable_variable()->set_pad(0.5);
  EXPECT_THAT(Fault(), testing::StartsWith("data.tfrecord.inputs.ids.variable.pad: is 0.5"));
  inputs = good;
  inputs["targets"].mutable_scatter()->set_fill(-7);
  EXPECT_EQ(Fault(),
            "data.tfrecord.inputs.targets.scatter.fill: is -7, but the model's targets takes 0 to "
            "29, -100 is ignored");
  inputs["targets"].mutable_scatter()->clear_values();
  EXPECT_EQ(Fault(), "data.tfrecord.inputs.targets.scatter.values: required: name of a feature");
  inputs = good;
  inputs["ids"].mutable_fixed()->set_offset(0.5);
  EXPECT_THAT(Fault(), testing::StartsWith("data.tfrecord.inputs.ids.fixed.offset: "));
  inputs["ids"].mutable_image();
  EXPECT_THAT(Fault(), testing::StartsWith("data.tfrecord.inputs.ids.image: an image fills "));
  inputs = good;
  spec_.mutable_tfrecord()->set_holdout(0.6);
  EXPECT_EQ(Fault(), "data.tfrecord.holdout: must be in [0, 0.5] (is 0.6)");
  spec_.mutable_tfrecord()->set_holdout(0.5);
  WriteSamples(0, 1);
  EXPECT_EQ(ReasonOf(Status()), "DATA_TOO_SMALL");
  spec_.mutable_tfrecord()->set_path(Path("nope"));
  EXPECT_EQ(ReasonOf(Status()), "DATA_NOT_FOUND");
}

TEST_F(TfrecordDatasetTest, ImagesAreMadeFromTheirBytes) {
  spec_.mutable_tfrecord()->clear_inputs();
  (*spec_.mutable_tfrecord()->mutable_inputs())["pixels"].mutable_image()->set_feature("jpeg");
  const auto image = [](const std::string& bytes) {
    return Example(0, [&](Features& features) { Add(features, "jpeg", bytes); });
  };
  Write({image("abcd"), image("efgh"), image("bad"), image("ijkl")});
  spec_.mutable_tfrecord()->set_holdout(0.25);
  const auto dataset = Open(PixelModel()).value();
  EXPECT_TRUE(dataset->is_slow());
  EXPECT_EQ(dataset->row_values(0).size(), 1);
  EXPECT_THAT(RowBytes(*dataset, PixelModel()), testing::ElementsAre(4));
  std::string pixels(8, '\0');
  const auto bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(pixels.data()), 8);
  ASSERT_TRUE(dataset->Read({{.epoch = 0, .sample = 1}, {.epoch = 2, .sample = 0}}, {bytes}).ok());
  EXPECT_EQ(pixels, "efghcdef");
  ASSERT_TRUE(dataset->ReadEvaluation(0, 1, {bytes.first(4)}).ok());
  EXPECT_EQ(pixels, "ijklcdef");
  const absl::Status status = dataset->Read({{.epoch = 0, .sample = 2}}, {bytes.first(4)});
  EXPECT_EQ(ReasonOf(status), "DATA_DAMAGED");
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("record 2 at byte "),
                             testing::EndsWith(": feature 'jpeg': not an image")));
  EXPECT_THAT(std::string(OpenTfrecordDataset(spec_, PixelModel(), {}, {}).status().message()),
              testing::EndsWith("this process decodes no images"));
}

TEST_F(TfrecordDatasetTest, StageTimesSayWhatReadingCosts) {
  WriteSamples(0, 100);
  const auto dataset = Open().value();
  StageTimes times;
  SetStageTimes(&times);
  Rows(*dataset, {1, 2, 3, 50});
  SetStageTimes(nullptr);
  EXPECT_GT(times.nanoseconds[static_cast<int>(InputStage::kRead)], 0);
  EXPECT_GT(times.nanoseconds[static_cast<int>(InputStage::kDecode)], 0);
  const size_t records = Example(1).size() + Example(2).size() + Example(3).size();
  EXPECT_EQ(times.read_bytes, records + 2 * 16 + 4 + Example(50).size() + 4);
}

// The base class reads rows to count their targets.
TEST_F(TfrecordDatasetTest, CountsTargetsFromItsIndex) {
  auto example = [](int number, const std::vector<int64_t>& positions) {
    return Example(number, [&](Features& features) {
      Add(features, "positions", positions);
      Add(features, "values", std::vector<int64_t>(positions.size(), 1));
      Add(features, "weights", std::vector<float>(positions.size(), 1));
    });
  };
  Write({example(0, {0}), example(1, {}), example(2, {3, 1}), example(3, {0, 1, 2, 3}),
         example(4, {4}), example(5, {2, 3})});
  spec_.mutable_tfrecord()->set_holdout(0.2);
  options_.index_folder = folder_ + "/index";
  const v1::Graph graph = TextModel();
  const Dataset::Target target{.graph = &graph, .input = 2, .use = UsesOfInputs(graph)[2]};
  for (const char* index : {"made", "loaded"}) {
    const auto dataset = Open().value();
    const auto samples = SamplesOf(0, {3, 0, 1, 2, 3});
    EXPECT_EQ(dataset->CountTargets(target, samples).value(), 11) << index;
    EXPECT_EQ(dataset->Dataset::CountTargets(target, samples).value(), 11);
    EXPECT_EQ(dataset->CountEvaluationTargets(target, 0, 1).value(), 2);
    EXPECT_EQ(dataset->Dataset::CountEvaluationTargets(target, 0, 1).value(), 2);
    const absl::Status damaged = dataset->CountTargets(target, SamplesOf(0, {0, 4})).status();
    EXPECT_EQ(ReasonOf(damaged), "DATA_DAMAGED") << damaged;
    EXPECT_THAT(std::string(damaged.message()), testing::HasSubstr("record 4 at byte"));
    EXPECT_FALSE(dataset->is_slow());
  }
}

// Changes bytes and their checksums at random, so that all parsers see them.
TEST_F(TfrecordDatasetTest, ReadsOrRefusesAFileOfAnyBytes) {
  const uint32_t seed = 20261130;
  std::mt19937 random(seed);
  std::map<std::string, int> reasons;
  for (int i = 0; i < 300; ++i) {
    std::vector<std::string> examples;
    for (int k = 0; k < 3; ++k) examples.push_back(Example(k));
    for (int flips = random() % 3; flips > 0; --flips) {
      std::string& example = examples[random() % 3];
      example[random() % example.size()] = static_cast<char>(random());
    }
    Write(examples);
    if (random() % 8 == 0) fs::resize_file(Path(), random() % fs::file_size(Path()));
    spec_.mutable_tfrecord()->set_checksums(random() % 2 == 0);
    const absl::Status status = Status();
    ++reasons[ReasonOf(status)];
    if (ReasonOf(status) != "DATA_DAMAGED") continue;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(Path() + ": record "))
        << "seed " << seed;
  }
  EXPECT_GT(reasons[""], 20);
  EXPECT_GT(reasons["DATA_DAMAGED"], 20);
  for (const auto& [reason, count] : reasons) {
    EXPECT_THAT(reason, testing::AnyOf("", "DATA_DAMAGED", "DATA_TOO_SMALL", "DATA_INVALID"))
        << count;
  }
}

}  // namespace
}  // namespace muster::tfrecord_dataset_test
