#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
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
#include "lib/data/format/npy.h"
#include "lib/data/input_use.h"
#include "lib/data/sample_bytes.h"
#include "lib/data/source/open_dataset.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::npy_dataset_test {
namespace {

std::string Header(absl::string_view dictionary, int major = 1) {
  const size_t length_bytes = major == 1 ? 2 : 4;
  std::string text(dictionary);
  while ((8 + length_bytes + text.size() + 1) % 64 != 0) text.push_back(' ');
  text.push_back('\n');
  std::string header = absl::StrCat("\x93NUMPY", std::string(1, major), std::string(1, '\0'));
  for (size_t i = 0; i < length_bytes; ++i) {
    header.push_back(static_cast<char>(text.size() >> (8 * i)));
  }
  return header + text;
}

std::string Dictionary(absl::string_view descr, absl::string_view shape,
                       absl::string_view fortran = "False") {
  return absl::StrCat("{'descr': '", descr, "', 'fortran_order': ", fortran, ", 'shape': (", shape,
                      "), }");
}

template <typename T>
std::string Npy(absl::string_view descr, absl::string_view shape, const std::vector<T>& values,
                int major = 1) {
  return Header(Dictionary(descr, shape), major) +
         std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <typename T>
std::vector<T> UpTo(int count) {
  std::vector<T> values(count);
  std::iota(values.begin(), values.end(), T{0});
  return values;
}

// A model that reads f32 images [B, 2, 3], ids [B, 4] below 50, and labels [B] below 30 with an
// ignore_index.
v1::Graph ThreeInputs() {
  v1::Graph graph;
  auto input = [&](const char* name, v1::DType dtype, std::vector<int64_t> shape) {
    v1::GraphInput& added = *graph.add_inputs();
    added.set_name(name);
    added.set_dtype(dtype);
    added.add_shape(-1);
    for (int64_t size : shape) added.add_shape(size);
  };
  input("images", v1::DTYPE_F32, {2, 3});
  input("tokens", v1::DTYPE_I32, {4});
  input("labels", v1::DTYPE_I32, {});
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
  node("Embedding", {"tokens", "table"}, {"embedded"});
  node("Flatten", {"images"}, {"x"});
  node("Linear", {"x", "head"}, {"logits"});
  auto& loss = node("SoftmaxCrossEntropy", {"logits", "labels"}, {"loss", "lse"});
  (*loss.mutable_attributes())["ignore_index"].set_i(-1);
  graph.set_loss("loss");
  return graph;
}

class NpyDatasetTest : public testing::Test {
 protected:
  NpyDatasetTest() {
    Fill("images", Npy("<f4", "10, 2, 3", UpTo<float>(60)));
    Fill("tokens", Npy("<i8", "10, 4", UpTo<int64_t>(40)));
    Fill("labels", Npy("|u1", "10,", UpTo<uint8_t>(10)));
  }

  void Fill(const std::string& input, const std::string& content) {
    const std::string path = absl::StrCat(testing::TempDir(), "/", input, ".npy");
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    (*spec_.mutable_npy()->mutable_inputs())[input] = path;
  }

  absl::StatusOr<std::unique_ptr<const Dataset>> Open() {
    return OpenDataset(spec_, ThreeInputs());
  }
  std::string Fault() { return std::string(Open().status().message()); }
  std::string Reason() { return ReasonOf(Open().status()); }

  v1::DataSpec spec_;
};

TEST_F(NpyDatasetTest, RowsOfAllFilesMakeASample) {
  spec_.mutable_npy()->set_holdout(0.2);
  auto dataset = Open();
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->samples(), 8);
  EXPECT_EQ((*dataset)->evaluation_samples(), 2);
  std::vector<float> images(12);
  std::vector<int32_t> tokens(8), labels(2);

  ASSERT_TRUE((*dataset)
                  ->Read(SamplesOf(3, {7, 0}), {BytesOf(images), BytesOf(tokens), BytesOf(labels)})
                  .ok());
  EXPECT_EQ(images, (std::vector<float>{42, 43, 44, 45, 46, 47, 0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(tokens, (std::vector<int32_t>{28, 29, 30, 31, 0, 1, 2, 3}));
  EXPECT_EQ(labels, (std::vector<int32_t>{7, 0}));

  ASSERT_TRUE((*dataset)->ReadEvaluation(1, 1, {{}, {}, BytesOf(labels).first(4)}).ok());
  EXPECT_EQ(labels[0], 9) << "only the requested inputs are filled";
  EXPECT_EQ(images[0], 42);
}

// The loss of the tokens ignores multiples of 7. The dataset counts them when it is opened, and the
// base class reads rows to count them.
TEST_F(NpyDatasetTest, CountsTargetsAsItsRowsSay) {
  v1::Graph graph;
  for (const auto& [name, shape] :
       std::map<std::string, std::vector<int64_t>>{{"logits", {-1, 4, 50}}, {"tokens", {-1, 4}}}) {
    v1::GraphInput& input = *graph.add_inputs();
    input.set_name(name);
    input.set_dtype(name == "logits" ? v1::DTYPE_F32 : v1::DTYPE_I32);
    for (const int64_t size : shape) input.add_shape(size);
  }
  std::vector<int64_t> tokens = UpTo<int64_t>(40);
  for (int64_t& token : tokens) token = token % 7 == 0 ? -1 : token;
  v1::Node& loss = *graph.add_nodes();
  loss.set_name("loss");
  loss.set_op("SoftmaxCrossEntropy");
  for (const char* name : {"logits", "tokens"}) loss.add_inputs(name);
  for (const char* name : {"loss", "lse"}) loss.add_outputs(name);
  (*loss.mutable_attributes())["ignore_index"].set_i(-1);
  graph.set_loss("loss");
  spec_.mutable_npy()->clear_inputs();
  spec_.mutable_npy()->set_holdout(0.3);
  Fill("logits", Npy("<f4", "10, 4, 50", UpTo<float>(2000)));
  Fill("tokens", Npy("<i8", "10, 4", tokens));
  const auto dataset = OpenDataset(spec_, graph).value();
  const Dataset::Target target{.graph = &graph, .input = 1, .use = UsesOfInputs(graph)[1]};

  for (const std::vector<int64_t>& samples :
       std::vector<std::vector<int64_t>>{{}, {0}, {6, 3, 3}, {0, 1, 2, 3, 4, 5, 6}}) {
    const std::vector<SampleRef> refs = SamplesOf(0, samples);
    EXPECT_EQ(*dataset->CountTargets(target, refs), *dataset->Dataset::CountTargets(target, refs));
  }
  EXPECT_EQ(*dataset->CountTargets(target, SamplesOf(0, {0, 1})), 6) << "0 and 7 are ignored";
  EXPECT_EQ(*dataset->CountEvaluationTargets(target, 0, 3), 10) << "28 and 35 are ignored";
  EXPECT_EQ(*dataset->Dataset::CountEvaluationTargets(target, 1, 2), 7);
  EXPECT_EQ(*dataset->CountEvaluationTargets(target, 1, 2), 7);
}

TEST_F(NpyDatasetTest, TheFingerprintIsOfTypesAndShapes) {
  const std::string fingerprint = (*Open())->fingerprint();
  EXPECT_EQ(fingerprint.size(), 32);
  EXPECT_EQ((*Open())->fingerprint(), fingerprint);
  Fill("tokens", Npy("<i4", "10, 4", UpTo<int32_t>(40)));
  EXPECT_NE((*Open())->fingerprint(), fingerprint);
}

TEST_F(NpyDatasetTest, RefusesIdsBeyondTheMemoryLimit) {
  EXPECT_TRUE(OpenDataset(spec_, ThreeInputs(), {.held_bytes_max = 40 * 8 + 10}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(
      OpenDataset(spec_, ThreeInputs(), {.held_bytes_max = 40 * 8 + 9}).status()));
}

TEST_F(NpyDatasetTest, NumbersAreConvertedButNotScaled) {
  for (int major : {1, 2, 3}) {
    Fill("images", Npy("<f8", "10, 2, 3", UpTo<double>(60), major));
    auto dataset = Open();
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    std::vector<float> images(6);
    ASSERT_TRUE((*dataset)->Read(SamplesOf(0, {9}), {BytesOf(images), {}, {}}).ok());
    EXPECT_EQ(images[5], 59);
  }
  Fill("images", Npy("|u1", "10, 2, 3", UpTo<uint8_t>(60)));
  Fill("tokens", Npy("<i4", "10, 4", UpTo<int32_t>(40)));
  Fill("labels", Npy("<i4", "10,", std::vector<int32_t>(10, -1)));
  auto dataset = Open();
  ASSERT_TRUE(dataset.ok()) << dataset.status() << ": every label is ignored, which is allowed";
  EXPECT_EQ(RowBytes(**dataset, ThreeInputs()), (std::vector<int64_t>{6, 16, 4}));
  std::vector<uint8_t> bytes(6);
  ASSERT_TRUE((*dataset)->Read(SamplesOf(0, {9}), {BytesOf(bytes), {}, {}}).ok());
  EXPECT_EQ(bytes[5], 59);
  const absl::Span<const kernels::ByteValues> values = (*dataset)->row_values(0);
  ASSERT_EQ(values.size(), 1);
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(values[0][byte], byte);
  EXPECT_TRUE((*dataset)->row_values(1).empty());
}

TEST_F(NpyDatasetTest, ReportsAnIdOutOfRangeWithFileAndRow) {
  std::vector<int64_t> tokens = UpTo<int64_t>(40);
  tokens[30] = 50;
  Fill("tokens", Npy("<i8", "10, 4", tokens));
  EXPECT_EQ(Fault(), absl::StrCat("data.npy.inputs.tokens: ", testing::TempDir(),
                                  "/tokens.npy: 50 in row 7; the model takes 0 to 49"));
  EXPECT_EQ(Reason(), "DATA_INVALID");
  tokens[30] = int64_t{1} << 40;
  Fill("tokens", Npy("<i8", "10, 4", tokens));
  EXPECT_TRUE(absl::StrContains(Fault(), "1099511627776 in row 7")) << Fault();
  Fill("tokens", Npy("<i8", "10, 4", UpTo<int64_t>(40)));
  Fill("labels", Npy("<i4", "10,", std::vector<int32_t>(10, -2)));
  EXPECT_TRUE(absl::StrContains(Fault(), "-2 in row 0; the model takes 0 to 29")) << Fault();
}

TEST_F(NpyDatasetTest, FilesMustFitTheModel) {
  Fill("images", Npy("<f4", "10, 6", UpTo<float>(60)));
  EXPECT_TRUE(absl::StrContains(Fault(), "[10, 6] but the model's images is [-1, 2, 3]"));
  Fill("images", Npy("<f4", "9, 2, 3", UpTo<float>(54)));
  EXPECT_TRUE(absl::StrContains(Fault(), ": 10 samples, but images has 9")) << Fault();
  Fill("images", Npy("<f4", "0, 2, 3", UpTo<float>(0)));
  EXPECT_EQ(Reason(), "DATA_TOO_SMALL");
  Fill("images", Npy("<f4", "10, 2, 3", UpTo<float>(60)));
  Fill("tokens", Npy("<f4", "10, 4", UpTo<float>(40)));
  EXPECT_TRUE(absl::StrContains(Fault(), "f32 but the model's tokens are ids")) << Fault();
  Fill("tokens", Npy("<i4", "10, 4", UpTo<int32_t>(40)));
  Fill("more", Npy("<i4", "10, 4", UpTo<int32_t>(40)));
  EXPECT_EQ(Fault(),
            "data.npy.inputs.more: the model has no such input; it reads images, tokens, labels");
  spec_.mutable_npy()->mutable_inputs()->erase("more");
  spec_.mutable_npy()->mutable_inputs()->erase("labels");
  EXPECT_EQ(Fault(), "data.npy.inputs.labels: required: a file for the model's labels, [-1]");
  (*spec_.mutable_npy()->mutable_inputs())["labels"] = "/no/such/file.npy";
  EXPECT_EQ(Reason(), "DATA_NOT_FOUND");
  (*spec_.mutable_npy()->mutable_inputs())["labels"] = testing::TempDir();
  EXPECT_EQ(Reason(), "DATA_INVALID");
}

TEST_F(NpyDatasetTest, RefusesOtherFormatsAndSaysWhatToDo) {
  const std::string floats(240, 'x');
  struct Case {
    std::string file, message, reason;
  };
  const std::string good = Dictionary("<f4", "10, 2, 3");
  for (const Case& c : std::vector<Case>{
           {"PK\3\4 an npz", "not an .npy file", "DATA_INVALID"},
           {"\x1f\x8b gzip", "is compressed with gzip", "DATA_INVALID"},
           {"", "the file is empty", "DATA_TRUNCATED"},
           {"\x93NUM", "4 bytes", "DATA_TRUNCATED"},
           {Header(good, 4) + floats, "format version 4", "DATA_INVALID"},
           {Header(Dictionary(">f4", "10, 2, 3")) + floats, "elements are '>f4'", "DATA_INVALID"},
           {Header(Dictionary("|O", "10, 2, 3")) + floats,
            "save array.astype('<f4'), or '<i4' for ids", "DATA_INVALID"},
           {Header(Dictionary("<f4", "10, 2, 3", "True")) + floats, "Fortran order",
            "DATA_INVALID"},
           {Header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (10,), }") + floats,
            "header cannot be read", "DATA_INVALID"},
           {Header("{'descr': '<f4', 'shape': (10, 2, 3), }") + floats, "lacks descr",
            "DATA_INVALID"},
           {Header(good) + floats.substr(8), "232 of 240 bytes", "DATA_TRUNCATED"},
           {Header(good) + floats + "y", "1 bytes follow the array", "DATA_INVALID"},
           {Header(good).substr(0, 40), "ends inside its header", "DATA_TRUNCATED"},
           {Header(Dictionary("<f4", "4611686018427387904, 4611686018427387904")), "is too large",
            "DATA_INVALID"},
       }) {
    Fill("images", c.file);
    EXPECT_TRUE(absl::StrContains(Fault(), c.message)) << Fault();
    EXPECT_TRUE(absl::StartsWith(Fault(), "data.npy.inputs.images: ")) << Fault();
    EXPECT_EQ(Reason(), c.reason) << Fault();
  }
}

TEST_F(NpyDatasetTest, ReadsOrRefusesAHeaderOfAnyBytes) {
  const uint32_t seed = 20260101;
  std::mt19937 random(seed);
  const std::string good = Npy("<f4", "10, 2, 3", UpTo<float>(60));
  for (int i = 0; i < 50'000; ++i) {
    std::string bytes = good;
    for (int flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % 128] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const auto header = ReadNpyHeader(
        {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "x.npy", "data");
    if (header.ok()) {
      ASSERT_EQ(header->data_offset + header->data_bytes, bytes.size()) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace muster::npy_dataset_test
