#include <sys/stat.h>
#include <zlib.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "kernels/byte_values.h"
#include "lib/data/dataset.h"
#include "lib/data/sample_bytes.h"
#include "lib/data/source/open_dataset.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::idx_dataset_test {
namespace {

v1::Graph GraphOf(std::vector<int64_t> image_shape) {
  v1::Graph graph;
  v1::GraphInput& input = *graph.add_inputs();
  input.set_name("input");
  input.set_dtype(v1::DTYPE_F32);
  input.add_shape(-1);
  for (int64_t size : image_shape) input.add_shape(size);
  v1::GraphInput& target = *graph.add_inputs();
  target.set_name("target");
  target.set_dtype(v1::DTYPE_I32);
  target.add_shape(-1);
  return graph;
}

std::string Idx(std::vector<uint32_t> shape, absl::string_view elements, char type = 8) {
  std::string idx = {0, 0, type, static_cast<char>(shape.size())};
  for (uint32_t size : shape) {
    for (int shift : {24, 16, 8, 0}) idx.push_back(static_cast<char>(size >> shift));
  }
  return idx.append(elements.data(), elements.size());
}

// Ten images of 2 x 3; pixel p of image i is 10 i + p; label i is i.
std::string Images() {
  std::string pixels;
  for (int image = 0; image < 10; ++image) {
    for (int pixel = 0; pixel < 6; ++pixel) pixels.push_back(static_cast<char>(10 * image + pixel));
  }
  return Idx({10, 2, 3}, pixels);
}

std::string Labels() { return Idx({10}, absl::string_view("\0\1\2\3\4\5\6\7\x8\x9", 10)); }

std::string Gzipped(const std::string& content) {
  const std::string path = testing::TempDir() + "/zipped";
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, content.data(), content.size());
  gzclose(file);
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string Write(const std::string& name, absl::string_view content) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  return path;
}

v1::DataSpec SpecOf(absl::string_view images, absl::string_view labels, double holdout = 0) {
  v1::DataSpec spec;
  spec.mutable_idx()->set_images(Write("images", images));
  spec.mutable_idx()->set_labels(Write("labels", labels));
  spec.mutable_idx()->set_holdout(holdout);
  return spec;
}

absl::StatusOr<std::unique_ptr<const Dataset>> Open(absl::string_view images,
                                                    absl::string_view labels, double holdout = 0) {
  return OpenDataset(SpecOf(images, labels, holdout), GraphOf({1, 2, 3}));
}

// The values of "input", as the model reads them.
std::vector<float> Decoded(const Dataset& dataset, const std::vector<uint8_t>& bytes) {
  std::vector<float> values(bytes.size());
  kernels::DecodeBytes(values.data(), bytes.data(), bytes.size(), dataset.row_values(0));
  return values;
}

TEST(IdxDatasetTest, PixelsAreBytesWithScaledValuesAndLabelsAreIds) {
  for (bool gzip : {false, true}) {
    auto dataset = gzip ? Open(Gzipped(Images()), Gzipped(Labels())) : Open(Images(), Labels());
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ(RowBytes(**dataset, GraphOf({1, 2, 3})), (std::vector<int64_t>{6, 4}));
    std::vector<uint8_t> pixels(12);
    std::vector<int32_t> target(2);

    ASSERT_TRUE((*dataset)->Read(SamplesOf(0, {9, 0}), {BytesOf(pixels), BytesOf(target)}).ok());
    const std::vector<float> input = Decoded(**dataset, pixels);

    EXPECT_EQ((*dataset)->samples(), 10);
    EXPECT_EQ(target, (std::vector<int32_t>{9, 0}));
    EXPECT_FLOAT_EQ(input[5], (95 / 255.0 - 0.5) / 0.5);
    EXPECT_FLOAT_EQ(input[6], -1);
  }
}

TEST(IdxDatasetTest, RefusesImagesAndLabelsBeyondTheMemoryLimit) {
  const v1::DataSpec spec = SpecOf(Gzipped(Images()), Labels());

  EXPECT_TRUE(OpenDataset(spec, GraphOf({1, 2, 3}), {.held_bytes_max = 70}).ok());
  const absl::Status status =
      OpenDataset(spec, GraphOf({1, 2, 3}), {.held_bytes_max = 69}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(status.message(), absl::StrCat("data.idx.labels: ", spec.idx().labels(),
                                           ": takes more than the 9 bytes that it may"));
}

TEST(IdxDatasetTest, RefusesAPipeWithoutBlocking) {
  v1::DataSpec spec = SpecOf(Images(), Labels());
  spec.mutable_idx()->set_labels(testing::TempDir() + "/pipe");
  ASSERT_EQ(mkfifo(spec.idx().labels().c_str(), 0600), 0);

  const absl::Status status = OpenDataset(spec, GraphOf({1, 2, 3})).status();

  EXPECT_EQ(ReasonOf(status), "DATA_INVALID");
  EXPECT_EQ(status.message(),
            absl::StrCat("data.idx.labels: ", spec.idx().labels(), ": is not a regular file"));
}

TEST(IdxDatasetTest, TheLastSamplesAreHeldOut) {
  auto dataset = Open(Images(), Labels(), 0.25);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->samples(), 7);
  ASSERT_EQ((*dataset)->evaluation_samples(), 3);
  std::vector<uint8_t> pixels(12);
  std::vector<int32_t> target(2);

  ASSERT_TRUE((*dataset)->ReadEvaluation(1, 2, {BytesOf(pixels), BytesOf(target)}).ok());
  const std::vector<float> input = Decoded(**dataset, pixels);

  EXPECT_EQ(target, (std::vector<int32_t>{8, 9}));
  EXPECT_FLOAT_EQ(input[0], (80 / 255.0 - 0.5) / 0.5);
}

TEST(IdxDatasetTest, EvaluationFilesReplaceTheHoldout) {
  v1::DataSpec spec = SpecOf(Images(), Labels());
  spec.mutable_idx()->set_eval_images(Write("eval_images", Idx({1, 2, 3}, "abcdef")));
  spec.mutable_idx()->set_eval_labels(Write("eval_labels", Idx({1}, "\x5")));
  auto dataset = OpenDataset(spec, GraphOf({6}));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->samples(), 10);
  ASSERT_EQ((*dataset)->evaluation_samples(), 1);
  std::vector<uint8_t> pixels(6);
  std::vector<int32_t> target(1);
  ASSERT_TRUE((*dataset)->ReadEvaluation(0, 1, {BytesOf(pixels), BytesOf(target)}).ok());
  const std::vector<float> input = Decoded(**dataset, pixels);
  EXPECT_EQ(target[0], 5);
  EXPECT_FLOAT_EQ(input[0], ('a' / 255.0 - 0.5) / 0.5);

  spec.mutable_idx()->set_eval_images(Write("eval_images", Idx({1, 3, 2}, "abcdef")));
  EXPECT_TRUE(absl::StartsWith(OpenDataset(spec, GraphOf({6})).status().message(),
                               "data.idx.eval_images: "));
  spec.mutable_idx()->clear_eval_labels();
  EXPECT_TRUE(absl::StartsWith(OpenDataset(spec, GraphOf({6})).status().message(),
                               "data.idx.eval_labels: "));
}

TEST(IdxDatasetTest, ReportsEveryTruncation) {
  for (bool gzip : {false, true}) {
    const std::string images = gzip ? Gzipped(Images()) : Images();
    for (size_t bytes = 0; bytes < images.size(); ++bytes) {
      absl::Status status = Open(images.substr(0, bytes), Labels()).status();
      ASSERT_EQ(ReasonOf(status).substr(0, 5), "DATA_") << bytes << ": " << status;
      EXPECT_TRUE(absl::StartsWith(status.message(), "data.idx.images: ")) << status;
      EXPECT_TRUE(gzip || ReasonOf(status) == "DATA_TRUNCATED") << bytes << ": " << status;
    }
  }
  EXPECT_EQ(ReasonOf(Open(Images(), Labels().substr(0, 12)).status()), "DATA_TRUNCATED");
}

TEST(IdxDatasetTest, DetectsADamagedGzipStream) {
  std::string images = Gzipped(Images());
  images[images.size() - 6] ^= 1;  // a byte of the CRC-32
  EXPECT_EQ(ReasonOf(Open(images, Labels()).status()), "DATA_INVALID");
}

TEST(IdxDatasetTest, RefusesEveryMalformedFile) {
  const std::string pixels(60, 'p');
  const struct {
    std::string images;
    std::string labels;
    const char* reason;
    const char* message;
  } kCases[] = {
      {"text, not IDX", Labels(), "DATA_INVALID", "not an IDX file"},
      {Idx({10, 2, 3}, pixels, /*type=*/0x0d), Labels(), "DATA_INVALID", "unsigned bytes"},
      {Images() + "x", Labels(), "DATA_INVALID", "bytes follow the 60 elements"},
      {Idx({60}, pixels), Labels(), "DATA_INVALID", "1 dimensions"},
      {Idx({10, 1, 1, 2, 3}, pixels), Labels(), "DATA_INVALID", "5 dimensions"},
      {Idx({0, 2, 3}, ""), Labels(), "DATA_TOO_SMALL", "dimension 0 is 0"},
      {Idx({0xffffffff, 0xffffffff, 0xffffffff}, pixels), Labels(), "DATA_INVALID", "exceed"},
      {Idx({1u << 31, 32, 1}, pixels), Labels(), "DATA_TRUNCATED", "60 of 68719476736"},
      {Images(), Idx({9}, "123456789"), "DATA_INVALID", "9 labels for 10 images"},
      {Images(), Idx({10, 1}, "0123456789"), "DATA_INVALID", "2 dimensions"},
      {Images(), Labels() + "x", "DATA_INVALID", "bytes follow"},
  };
  for (const auto& wrong : kCases) {
    absl::Status status = Open(wrong.images, wrong.labels).status();
    EXPECT_EQ(ReasonOf(status), wrong.reason) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), wrong.message)) << status;
  }
}

TEST(IdxDatasetTest, FaultsOfPathsAndModelsNameTheField) {
  v1::DataSpec spec = SpecOf(Images(), Labels());
  absl::Status misfit = OpenDataset(spec, GraphOf({1, 28, 28})).status();
  EXPECT_EQ(misfit.message(),
            "data.idx.images: images are 1 x 2 x 3 but the model's input is f32[-1, 1, 28, 28]");
  EXPECT_EQ(ReasonOf(misfit), "DATA_INVALID");

  spec.mutable_idx()->set_holdout(0.6);
  EXPECT_TRUE(
      absl::StartsWith(OpenDataset(spec, GraphOf({6})).status().message(), "data.idx.holdout: "));
  EXPECT_EQ(ReasonOf(Open(Idx({1, 2, 3}, "abcdef"), Idx({1}, "a"), 0.5).status()),
            "DATA_TOO_SMALL");

  spec.mutable_idx()->set_holdout(0);
  spec.mutable_idx()->set_labels("/nope");
  absl::Status absent = OpenDataset(spec, GraphOf({6})).status();
  EXPECT_TRUE(
      absl::StartsWith(absent.message(), "data.idx.labels: /nope: no such file or directory on "))
      << absent;
  EXPECT_EQ(ReasonOf(absent), "DATA_NOT_FOUND");
  spec.mutable_idx()->set_labels(testing::TempDir());
  EXPECT_EQ(ReasonOf(OpenDataset(spec, GraphOf({6})).status()), "DATA_INVALID");
}

TEST(IdxDatasetTest, TheFingerprintIsOfShapesAndLabels) {
  const std::string fingerprint = (*Open(Images(), Labels()))->fingerprint();
  EXPECT_EQ(fingerprint.size(), 32);
  EXPECT_EQ((*Open(Gzipped(Images()), Labels()))->fingerprint(), fingerprint);
  std::string labels = Labels();
  labels.back() ^= 1;
  EXPECT_NE((*Open(Images(), labels))->fingerprint(), fingerprint);
}

TEST(IdxDatasetTest, RefusesLabelsBeyondTheModelsClasses) {
  v1::Graph graph = GraphOf({6});
  v1::Parameter& weight = *graph.add_parameters();
  weight.set_name("weight");
  weight.add_shape(9);
  weight.add_shape(6);
  v1::Node& linear = *graph.add_nodes();
  linear.set_name("linear");
  linear.set_op("Linear");
  linear.add_inputs("input");
  linear.add_inputs("weight");
  linear.add_outputs("logits");
  graph.set_logits("logits");
  v1::Node& loss = *graph.add_nodes();
  loss.set_name("loss");
  loss.set_op("SoftmaxCrossEntropy");
  for (const char* name : {"logits", "target"}) loss.add_inputs(name);
  for (const char* name : {"loss", "lse"}) loss.add_outputs(name);
  graph.set_loss("loss");
  v1::DataSpec spec = SpecOf(Images(), Labels());

  const absl::Status training = OpenDataset(spec, graph).status();
  EXPECT_EQ(ReasonOf(training), "DATA_INVALID");
  EXPECT_EQ(training.message(),
            absl::StrCat("data.idx.labels: ", spec.idx().labels(),
                         ": label 9 of sample 9 does not fit the model's 9 classes: set "
                         "model.zoo.args.classes to 10"));

  graph.mutable_parameters(0)->set_shape(0, 10);
  EXPECT_TRUE(OpenDataset(spec, graph).ok());
  spec.mutable_idx()->set_eval_images(Write("eval_images", Idx({1, 2, 3}, "abcdef")));
  spec.mutable_idx()->set_eval_labels(Write("eval_labels", Idx({1}, "\xa")));
  const absl::Status evaluation = OpenDataset(spec, graph).status();
  EXPECT_EQ(ReasonOf(evaluation), "DATA_INVALID");
  EXPECT_TRUE(absl::StartsWith(evaluation.message(), "data.idx.eval_labels: ")) << evaluation;
}

}  // namespace
}  // namespace muster::idx_dataset_test
