#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "lib/data/dataset.h"
#include "lib/data/format/zip_writer.h"
#include "lib/data/sample_bytes.h"
#include "lib/data/source/open_dataset.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::npz_dataset_test {
namespace {

template <typename T>
std::string Npy(absl::string_view descr, absl::string_view shape, const std::vector<T>& values) {
  std::string header =
      absl::StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (", shape, "), }");
  header.resize(117, ' ');
  return absl::StrCat(
      "\x93NUMPY", absl::string_view("\x01\0\x76\0", 4), header, "\n",
      absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
}

template <typename T>
std::vector<T> UpTo(int count) {
  std::vector<T> values(count);
  std::iota(values.begin(), values.end(), T{0});
  return values;
}

// A model that reads x f32[B, 3] and classes i32[B] below 4.
v1::Graph Classifier() {
  v1::Graph graph;
  v1::GraphInput& x = *graph.add_inputs();
  x.set_name("x");
  x.set_dtype(v1::DTYPE_F32);
  x.add_shape(-1);
  x.add_shape(3);
  v1::GraphInput& classes = *graph.add_inputs();
  classes.set_name("classes");
  classes.set_dtype(v1::DTYPE_I32);
  classes.add_shape(-1);
  v1::Parameter& head = *graph.add_parameters();
  head.set_name("head");
  head.add_shape(4);
  head.add_shape(3);
  auto node = [&](const char* op, std::vector<const char*> inputs,
                  std::vector<const char*> outputs) {
    v1::Node& added = *graph.add_nodes();
    added.set_name(outputs[0]);
    added.set_op(op);
    for (const char* name : inputs) added.add_inputs(name);
    for (const char* name : outputs) added.add_outputs(name);
  };
  node("Linear", {"x", "head"}, {"logits"});
  node("SoftmaxCrossEntropy", {"logits", "classes"}, {"loss", "lse"});
  graph.set_loss("loss");
  return graph;
}

class NpzDatasetTest : public testing::Test {
 protected:
  NpzDatasetTest() {
    v1::NpzData& npz = *spec_.mutable_npz();
    npz.set_path(absl::StrCat(testing::TempDir(), "/train.npz"));
    (*npz.mutable_inputs())["x"] = "images";
    (*npz.mutable_inputs())["classes"] = "labels";
    arrays_["images"] = Npy("<f8", "10, 3", UpTo<double>(30));
    arrays_["labels"] = Npy("<i8", "10,", std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1});
  }

  absl::StatusOr<std::unique_ptr<const Dataset>> Open(int64_t held_bytes_max = 1 << 20) {
    ZipWriter writer;
    std::ofstream file(spec_.npz().path(), std::ios::binary | std::ios::trunc);
    for (const auto& [name, content] : arrays_) {
      const auto* bytes = reinterpret_cast<const Bytef*>(content.data());
      file << writer.Next(name + ".npy", crc32_z(0, bytes, content.size()), content.size())
           << content;
    }
    file << writer.End();
    file.close();
    return OpenDataset(spec_, Classifier(), {.held_bytes_max = held_bytes_max});
  }
  std::string Fault() { return std::string(Open().status().message()); }

  v1::DataSpec spec_;
  std::map<std::string, std::string> arrays_;
};

TEST_F(NpzDatasetTest, RowsOfAllArraysMakeASample) {
  spec_.mutable_npz()->set_holdout(0.2);
  const auto dataset = Open();
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->samples(), 8);
  EXPECT_EQ((*dataset)->evaluation_samples(), 2);
  std::vector<float> x(9);
  std::vector<int32_t> classes(3);
  ASSERT_TRUE((*dataset)->Read(SamplesOf(3, {7, 2, 3}), {BytesOf(x), BytesOf(classes)}).ok());
  EXPECT_EQ(x, (std::vector<float>{21, 22, 23, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(classes, (std::vector<int32_t>{3, 2, 3}));
  ASSERT_TRUE((*dataset)->ReadEvaluation(1, 1, {{}, BytesOf(classes).first(4)}).ok());
  EXPECT_EQ(classes[0], 1);
}

TEST_F(NpzDatasetTest, OtherContentsHaveAnotherFingerprint) {
  const std::string fingerprint = Open().value()->fingerprint();
  EXPECT_FALSE(fingerprint.empty());
  EXPECT_EQ(Open().value()->fingerprint(), fingerprint);
  arrays_["labels"][arrays_["labels"].size() - 16] = 2;  // the label of sample 8
  EXPECT_NE(Open().value()->fingerprint(), fingerprint);
}

TEST_F(NpzDatasetTest, BytesForNumbersStayBytes) {
  arrays_["images"] = Npy("|u1", "10, 3", UpTo<uint8_t>(30));
  const auto dataset = Open();
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  ASSERT_EQ((*dataset)->row_values(0).size(), 1);
  EXPECT_EQ((*dataset)->row_values(0)[0][255], 255);
  std::vector<uint8_t> x(3);
  ASSERT_TRUE((*dataset)->Read(SamplesOf(0, {9}), {BytesOf(x), {}}).ok());
  EXPECT_EQ(x, (std::vector<uint8_t>{27, 28, 29}));
}

TEST_F(NpzDatasetTest, LargeArraysAreConvertedInPieces) {
  const int samples = 40'000;
  arrays_["images"] = Npy("<f8", absl::StrCat(samples, ", 3"), UpTo<double>(3 * samples));
  arrays_["labels"] = Npy("|u1", absl::StrCat(samples, ","), std::vector<uint8_t>(samples, 3));
  const auto dataset = Open();
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  std::vector<SampleRef> all;
  for (int i = 0; i < samples; ++i) all.push_back({.epoch = 0, .sample = i});
  std::vector<float> x(3 * samples);
  ASSERT_TRUE((*dataset)->Read(all, {BytesOf(x), {}}).ok());
  EXPECT_EQ(x, UpTo<float>(3 * samples));
}

TEST_F(NpzDatasetTest, ErrorsNameTheFileAndTheArray) {
  const std::string path = spec_.npz().path();
  arrays_["labels"] = Npy("<i8", "10,", std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 4, 0, 1});
  EXPECT_EQ(Fault(), absl::StrCat("data.npz.inputs.classes: ", path,
                                  ": array 'labels': 4 in row 7; the model takes 0 to 3"));
  arrays_["labels"] = Npy("<i8", "9,", std::vector<int64_t>(9));
  EXPECT_EQ(Fault(), absl::StrCat("data.npz.inputs.classes: ", path,
                                  ": array 'labels': 9 samples, but x has 10"));
  arrays_["images"] = Npy("<f4", "10, 4", UpTo<float>(40));
  EXPECT_EQ(Fault(), absl::StrCat("data.npz.inputs.x: ", path,
                                  ": array 'images': [10, 4] but the model's "
                                  "x is [-1, 3], the first for the samples"));
  (*spec_.mutable_npz()->mutable_inputs())["x"] = "pictures";
  EXPECT_EQ(Fault(), absl::StrCat("data.npz.inputs.x: ", path,
                                  ": has no array 'pictures'; it has 'images', 'labels'"));
  spec_.mutable_npz()->mutable_inputs()->erase("x");
  EXPECT_EQ(Fault(), "data.npz.inputs.x: required: an array for the model's x, [-1, 3]");
  spec_.mutable_npz()->set_path("/no/such/file.npz");
  EXPECT_EQ(ReasonOf(OpenDataset(spec_, Classifier()).status()), "DATA_NOT_FOUND");
}

TEST_F(NpzDatasetTest, IdsAreHeldWithinTheLimitAndTheirCrcIsChecked) {
  EXPECT_TRUE(Open(80).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Open(79).status()));
  const int samples = 2'000'000;  // larger than what Find() reads
  arrays_["images"] = Npy("|u1", absl::StrCat(samples, ", 3"), std::vector<uint8_t>(3 * samples));
  arrays_["labels"] = Npy("|u1", absl::StrCat(samples, ","), std::vector<uint8_t>(samples));
  ASSERT_TRUE(Open(samples).ok());
  std::fstream file(spec_.npz().path(), std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-1000, std::ios::end);  // in the labels, which come last
  file.put('\1');
  file.close();
  const absl::Status status = OpenDataset(spec_, Classifier()).status();
  EXPECT_EQ(ReasonOf(status), "DATA_DAMAGED");
  EXPECT_TRUE(absl::EndsWith(status.message(), ": the CRC differs")) << status;
}

}  // namespace
}  // namespace muster::npz_dataset_test
