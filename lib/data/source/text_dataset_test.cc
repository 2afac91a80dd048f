#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "lib/data/dataset.h"
#include "lib/data/sample_bytes.h"
#include "lib/data/source/open_dataset.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::text_dataset_test {
namespace {

namespace fs = std::filesystem;

v1::Graph GraphOf(int64_t window) {
  v1::Graph graph;
  for (const char* name : {"input", "target"}) {
    v1::GraphInput& input = *graph.add_inputs();
    input.set_name(name);
    input.set_dtype(v1::DTYPE_I32);
    input.add_shape(-1);
    input.add_shape(window);
  }
  return graph;
}

std::string RowText(const std::vector<int32_t>& ids) { return {ids.begin(), ids.end()}; }

class TextDatasetTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/text";
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  std::string Write(const std::string& name, absl::string_view text) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  static absl::StatusOr<std::unique_ptr<const Dataset>> Open(const std::string& path,
                                                             int64_t window, double holdout = 0,
                                                             uint64_t seed = 1) {
    v1::DataSpec spec;
    spec.mutable_text()->set_path(path);
    spec.mutable_text()->set_holdout(holdout);
    spec.set_seed(seed);
    return OpenDataset(spec, GraphOf(window));
  }

  // Returns input and target of one sample as text.
  static std::pair<std::string, std::string> Sample(const Dataset& dataset, int64_t window,
                                                    int64_t epoch, int64_t sample) {
    std::vector<int32_t> input(window), target(window);
    EXPECT_TRUE(dataset.Read(SamplesOf(epoch, {sample}), {BytesOf(input), BytesOf(target)}).ok());
    return {RowText(input), RowText(target)};
  }

  static std::pair<std::string, std::string> EvaluationSample(const Dataset& dataset,
                                                              int64_t window, int64_t sample) {
    std::vector<int32_t> input(window), target(window);
    EXPECT_TRUE(dataset.ReadEvaluation(sample, 1, {BytesOf(input), BytesOf(target)}).ok());
    return {RowText(input), RowText(target)};
  }

  std::string folder_;
};

// Text in which every window is unique: "00000 00001 00002 ...".
std::string NumberedText(int64_t bytes) {
  std::string text;
  for (int i = 0; text.size() < bytes; ++i)
    absl::StrAppend(&text, absl::Dec(i, absl::kZeroPad5), " ");
  text.resize(bytes);
  return text;
}

TEST_F(TextDatasetTest, TheFingerprintIsOfNamesAndSizes) {
  Write("a", "0123456789");
  Write("b", "0123456789");
  const std::string fingerprint = (*Open(folder_, 4))->fingerprint();
  EXPECT_EQ(fingerprint.size(), 32);
  EXPECT_EQ((*Open(folder_ + "/", 4))->fingerprint(), fingerprint);
  Write("a", "01234567890");
  Write("b", "012345678");
  EXPECT_NE((*Open(folder_, 4))->fingerprint(), fingerprint) << "as many bytes in all";
}

TEST_F(TextDatasetTest, TheTargetOfAByteIsTheNextByte) {
  const std::string text = NumberedText(1000);
  auto dataset = Open(Write("a", text), 16);
  ASSERT_TRUE(dataset.ok()) << dataset.status();

  EXPECT_EQ((*dataset)->samples(), 1000 / 16 - 1);
  EXPECT_EQ((*dataset)->evaluation_samples(), 0);
  for (int64_t epoch = 0; epoch < 40; ++epoch) {
    for (int64_t sample : {int64_t{0}, int64_t{7}, (*dataset)->samples() - 1}) {
      auto [input, target] = Sample(**dataset, 16, epoch, sample);
      const size_t at = text.find(input);
      ASSERT_NE(at, std::string::npos);
      EXPECT_EQ(target, text.substr(at + 1, 16));
      EXPECT_TRUE(sample * 16 <= at && at < (sample + 1) * 16) << sample << " at " << at;
    }
  }
}

TEST_F(TextDatasetTest, WindowsDependOnlyOnEpochAndSeed) {
  const std::string path = Write("a", NumberedText(1000));
  auto dataset = Open(path, 16), again = Open(path, 16), other = Open(path, 16, 0, /*seed=*/2);
  ASSERT_TRUE(dataset.ok() && again.ok() && other.ok());
  std::set<std::string> firsts;
  int same_as_other = 0;
  for (int64_t epoch = 0; epoch < 200; ++epoch) {
    auto first = Sample(**dataset, 16, epoch, 0);
    EXPECT_EQ(first, Sample(**again, 16, epoch, 0));
    same_as_other += first == Sample(**other, 16, epoch, 0);
    firsts.insert(first.first);
  }
  EXPECT_EQ(firsts.size(), 16) << "every shift occurs";
  EXPECT_LT(same_as_other, 40);
}

TEST_F(TextDatasetTest, TheShortestTextHasOneSample) {
  auto dataset = Open(Write("a", "01234567"), 4);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->samples(), 1);

  absl::Status status = Open(Write("b", "0123456"), 4).status();
  EXPECT_EQ(ReasonOf(status), "DATA_TOO_SMALL");
  EXPECT_TRUE(absl::StartsWith(status.message(), "data.text.path: ")) << status;
}

TEST_F(TextDatasetTest, EveryTenthBlockIsHeldOutAndNeverTrainedOn) {
  const std::string text = NumberedText(2048 * 25 + 100);
  auto dataset = Open(Write("a", text), 64, 0.1);
  ASSERT_TRUE(dataset.ok()) << dataset.status();

  EXPECT_EQ((*dataset)->evaluation_samples(), 2 * (2047 / 64));
  EXPECT_EQ((*dataset)->samples(), (2048 * 23 + 100) / 64 - 1);
  for (int64_t sample = 0; sample < (*dataset)->evaluation_samples(); ++sample) {
    auto [input, target] = EvaluationSample(**dataset, 64, sample);
    const size_t at = text.find(input);
    EXPECT_EQ(at, (sample < 31 ? 9 : 19) * 2048 + sample % 31 * 64);
    EXPECT_EQ(target, text.substr(at + 1, 64));
    EXPECT_EQ((at + 64) / 2048, at / 2048) << "crosses its block";
  }
  const std::string held_out = text.substr(9 * 2048, 2048);
  for (int64_t sample = 0; sample < (*dataset)->samples(); ++sample) {
    EXPECT_EQ(held_out.find(Sample(**dataset, 64, 0, sample).first), std::string::npos);
  }
}

TEST_F(TextDatasetTest, AShortLastBlockIsHeldOutAsWell) {
  const std::string text = NumberedText(2048 + 100);
  auto dataset = Open(Write("a", text), 33, 0.5);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  ASSERT_EQ((*dataset)->evaluation_samples(), 3);
  EXPECT_EQ(EvaluationSample(**dataset, 33, 2).second, text.substr(2048 + 67, 33));
}

TEST_F(TextDatasetTest, BytesAreIdsFromZeroTo255) {
  std::string text;
  for (int i = 0; i < 256; ++i) text.push_back(static_cast<char>(i));
  auto dataset = Open(Write("a", text + text), 256);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  std::vector<int32_t> input(256), target(256);
  ASSERT_TRUE((*dataset)->Read(SamplesOf(0, {0}), {BytesOf(input), BytesOf(target)}).ok());
  for (int i = 0; i < 256; ++i) {
    EXPECT_EQ(input[i], (input[0] + i) % 256);
    EXPECT_EQ(target[i], (input[0] + i + 1) % 256);
  }
}

TEST_F(TextDatasetTest, AFolderIsItsRegularFilesInNameOrder) {
  const std::string elsewhere = testing::TempDir() + "/elsewhere";
  std::ofstream(elsewhere) << "cccc";
  Write("b", "bbbb");
  Write("a", "aaaa");
  fs::create_symlink("b", folder_ + "/A-link-to-b");
  fs::create_symlink(elsewhere, folder_ + "/c");
  fs::create_symlink(elsewhere, folder_ + "/d");
  fs::create_directory(folder_ + "/e");
  std::ofstream(folder_ + "/e/inside") << "eeee";
  auto dataset = Open(folder_, 6);
  ASSERT_TRUE(dataset.ok()) << dataset.status();

  ASSERT_EQ((*dataset)->samples(), 1);
  std::set<std::string> inputs;
  for (int64_t epoch = 0; epoch < 100; ++epoch) inputs.insert(Sample(**dataset, 6, epoch, 0).first);
  EXPECT_EQ(inputs,
            (std::set<std::string>{"aaaabb", "aaabbb", "aabbbb", "abbbbc", "bbbbcc", "bbbccc"}));
}

TEST_F(TextDatasetTest, OpensTheExamplesLicenceTexts) {
  auto dataset = Open("examples/data/licences", 64, 0.1);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_GT((*dataset)->samples(), 1000);
  EXPECT_GT((*dataset)->evaluation_samples(), 100);
}

TEST_F(TextDatasetTest, FaultsNameTheFieldAndThePath) {
  absl::Status absent = Open("/nope", 4).status();
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  const std::string fault = absl::StrCat(": no such file or directory on ", host);
  EXPECT_EQ(absent.message(), "data.text.path: /nope" + fault);
  EXPECT_EQ(ReasonOf(absent), "DATA_NOT_FOUND");
  EXPECT_EQ(Open("not/here", 4).status().message(),
            "data.text.path: " + fs::current_path().native() + "/not/here" + fault);
  EXPECT_EQ(ReasonOf(Open("", 4).status()), "DATA_NOT_FOUND");
  EXPECT_EQ(ReasonOf(Open(folder_, 4).status()), "DATA_TOO_SMALL");
  EXPECT_EQ(ReasonOf(Open("/dev/null", 4).status()), "DATA_INVALID");

  fs::create_symlink("nowhere", folder_ + "/dangling");
  absl::Status dangling = Open(folder_, 4).status();
  EXPECT_EQ(ReasonOf(dangling), "DATA_NOT_FOUND");
  EXPECT_TRUE(absl::StrContains(dangling.message(), "dangling")) << dangling;
}

TEST_F(TextDatasetTest, RefusesDataThatDoesNotFitTheModel) {
  const std::string path = Write("a", NumberedText(5000));
  v1::DataSpec spec;
  spec.mutable_text()->set_path(path);
  v1::Graph graph = GraphOf(16);
  graph.mutable_inputs(1)->set_dtype(v1::DTYPE_F32);
  absl::Status status = OpenDataset(spec, graph).status();
  EXPECT_EQ(ReasonOf(status), "DATA_INVALID");
  EXPECT_TRUE(absl::StrContains(status.message(), "target is f32[-1, 16]")) << status;

  graph.mutable_inputs()->RemoveLast();
  EXPECT_TRUE(absl::StrContains(OpenDataset(spec, graph).status().message(), "target is missing"));
  EXPECT_EQ(ReasonOf(OpenDataset(v1::DataSpec(), graph).status()), "DATA_INVALID");
  EXPECT_EQ(ReasonOf(Open(path, 0).status()), "DATA_INVALID");
  EXPECT_EQ(ReasonOf(Open(path, int64_t{1} << 62).status()), "DATA_TOO_SMALL");
  EXPECT_EQ(ReasonOf(Open(path, 2048, 0.5).status()), "DATA_TOO_SMALL");
  for (double holdout : {-0.1, 0.51, std::nan("")}) {
    EXPECT_EQ(ReasonOf(Open(path, 16, holdout).status()), "DATA_INVALID") << holdout;
  }
  EXPECT_EQ((*Open(path, 16, 1e-300))->evaluation_samples(), 0);
}

// A graph with a vocabulary: rows of an embedding's table, and outputs of the head.
v1::Graph GraphWithVocabulary(int64_t embedded, int64_t predicted) {
  v1::Graph graph = GraphOf(16);
  auto add = [&](const char* op, const char* input, const char* parameter, int64_t rows,
                 const char* output) {
    graph.add_parameters()->set_name(parameter);
    graph.mutable_parameters()->rbegin()->add_shape(rows);
    graph.mutable_parameters()->rbegin()->add_shape(4);
    v1::Node& node = *graph.add_nodes();
    node.set_name(parameter);
    node.set_op(op);
    node.add_inputs(input);
    node.add_inputs(parameter);
    node.add_outputs(output);
  };
  add("Embedding", "input", "table", embedded, "x");
  add("Linear", "x", "head", predicted, "logits");
  graph.set_logits("logits");
  v1::Node& loss = *graph.add_nodes();
  loss.set_name("loss");
  loss.set_op("SoftmaxCrossEntropy");
  for (const char* name : {"logits", "target"}) loss.add_inputs(name);
  for (const char* name : {"loss", "lse"}) loss.add_outputs(name);
  graph.set_loss("loss");
  return graph;
}

TEST_F(TextDatasetTest, RefusesBytesOutsideTheModelsVocabulary) {
  std::string text(100, 'a');
  text[17] = static_cast<char>(200);
  Write("a", std::string(50, 'a'));
  const std::string path = Write("b", text);
  v1::DataSpec spec;
  spec.mutable_text()->set_path(folder_);

  EXPECT_TRUE(OpenDataset(spec, GraphWithVocabulary(201, 256)).ok());
  for (const auto& graph : {GraphWithVocabulary(128, 256), GraphWithVocabulary(256, 128)}) {
    const absl::Status status = OpenDataset(spec, graph).status();
    EXPECT_EQ(ReasonOf(status), "DATA_INVALID");
    EXPECT_EQ(status.message(),
              absl::StrCat("data.text.path: ", path,
                           ": byte 200 at offset 17 does not fit the model's vocabulary of 128: "
                           "set model.zoo.args.vocabulary to 256"));
  }
}

}  // namespace
}  // namespace muster::text_dataset_test
