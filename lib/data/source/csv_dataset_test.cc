#include "lib/data/source/csv_dataset.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/data/dataset.h"
#include "lib/data/format/farm_fingerprint.h"
#include "lib/data/sample_bytes.h"
#include "lib/data/source/open_dataset.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::csv_dataset_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void AddInput(v1::Graph& graph, const char* name, v1::DType dtype, std::vector<int64_t> shape) {
  v1::GraphInput& input = *graph.add_inputs();
  input.set_name(name);
  input.set_dtype(dtype);
  for (const int64_t size : shape) input.add_shape(size);
}

void AddNode(v1::Graph& graph, const char* op, std::vector<const char*> inputs,
             std::vector<const char*> outputs) {
  v1::Node& node = *graph.add_nodes();
  node.set_name(outputs[0]);
  node.set_op(op);
  for (const char* name : inputs) node.add_inputs(name);
  for (const char* name : outputs) node.add_outputs(name);
}

// A model that reads x f32[B, 2], categories i32[B, 2] below 1000, and classes i32[B] below 4.
v1::Graph Classifier() {
  v1::Graph graph;
  AddInput(graph, "x", v1::DTYPE_F32, {-1, 2});
  AddInput(graph, "categories", v1::DTYPE_I32, {-1, 2});
  AddInput(graph, "classes", v1::DTYPE_I32, {-1});
  for (const auto& [name, rows] : {std::pair("table", 1000), std::pair("head", 4)}) {
    v1::Parameter& parameter = *graph.add_parameters();
    parameter.set_name(name);
    parameter.add_shape(rows);
    parameter.add_shape(2);
  }
  AddNode(graph, "Embedding", {"categories", "table"}, {"embedded"});
  AddNode(graph, "Linear", {"x", "head"}, {"logits"});
  AddNode(graph, "SoftmaxCrossEntropy", {"logits", "classes"}, {"loss", "lse"});
  graph.set_loss("loss");
  return graph;
}

struct Row {
  std::vector<float> x;
  std::vector<int32_t> categories, classes;
};

class CsvDatasetTest : public testing::Test {
 protected:
  CsvDatasetTest() {
    folder_ = absl::StrCat(testing::TempDir(), "/",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    csv().set_path(folder_ + "/a.csv");
    Use("x", {"width", "height"}).mutable_number();
    Use("categories", {"color", "shape"}).mutable_hash()->set_buckets(1000);
    Use("classes", {"class"}).mutable_number();
    Write("a.csv",
          "class,width,color,shape,height\n"
          "0,1.5,red,round,2\n"
          "3,,blue,\"square, or\nnot\",-4e1\n"
          "1,7,,,8");
  }

  v1::CsvData& csv() { return *spec_.mutable_csv(); }
  v1::CsvInput& Use(const std::string& input, const std::vector<std::string>& columns) {
    v1::CsvInput& use = (*csv().mutable_inputs())[input];
    use.clear_columns();
    for (const std::string& column : columns) use.add_columns(column);
    return use;
  }
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/" + name, std::ios::binary | std::ios::trunc) << content;
  }

  absl::StatusOr<std::unique_ptr<const Dataset>> Open(const DataOptions& options = {}) {
    return OpenCsvDataset(spec_, graph_, options);
  }
  std::string Fault() { return std::string(Open().status().message()); }

  absl::StatusOr<Row> Read(const Dataset& dataset, int64_t sample) {
    Row row{std::vector<float>(2), std::vector<int32_t>(2), std::vector<int32_t>(1)};
    RETURN_IF_ERROR(dataset.Read(SamplesOf(0, {sample}),
                                 {BytesOf(row.x), BytesOf(row.categories), BytesOf(row.classes)}));
    return row;
  }
  Row Read(int64_t sample) { return Read(*Open().value(), sample).value(); }
  std::string ReadFault(int64_t sample) {
    const absl::Status status = Read(*Open().value(), sample).status();
    EXPECT_EQ(ReasonOf(status), "DATA_DAMAGED");
    return std::string(status.message());
  }

  std::string folder_;
  v1::DataSpec spec_;
  v1::Graph graph_ = Classifier();
};

TEST_F(CsvDatasetTest, ColumnsFillInputs) {
  const auto dataset = OpenDataset(spec_, graph_);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->samples(), 3);
  const Row row = Read(**dataset, 1).value();
  EXPECT_THAT(row.x, ElementsAre(0, -40));
  EXPECT_THAT(row.categories, ElementsAre(FarmFingerprint("blue") % 1000,
                                          FarmFingerprint("square, or\nnot") % 1000));
  EXPECT_THAT(row.classes, ElementsAre(3));
  EXPECT_THAT(Read(2).categories, ElementsAre(263, 263)) << "TensorFlow's bucket of \"\"";

  std::vector<float> x(6);
  ASSERT_TRUE((*dataset)->Read(SamplesOf(0, {2, 0, 1}), {BytesOf(x), {}, {}}).ok());
  EXPECT_THAT(x, ElementsAre(7, 8, 1.5, 2, 0, -40));
}

TEST_F(CsvDatasetTest, TheFirstFileMayBeEmpty) {
  Write("_SUCCESS", "");
  csv().set_path(folder_);
  const auto dataset = Open();
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->samples(), 3);
}

TEST_F(CsvDatasetTest, NumbersAreMadeLogarithmsAndScaled) {
  v1::CsvNumber& number = *Use("x", {"2", "5"}).mutable_number();
  number.set_missing(5);
  number.set_log(true);
  number.set_scale(2);
  number.set_offset(-1);
  EXPECT_THAT(Read(1).x, ElementsAre(static_cast<float>(2 * std::log1p(5.0) - 1), -1));
  EXPECT_THAT(Read(0).x, ElementsAre(static_cast<float>(2 * std::log1p(1.5) - 1),
                                     static_cast<float>(2 * std::log1p(2.0) - 1)));
}

TEST_F(CsvDatasetTest, AScaleOfZeroIsNotTheDefault) {
  Use("x", {"2", "5"}).mutable_number()->set_scale(0);
  EXPECT_THAT(Read(0).x, ElementsAre(0, 0));
  Use("x", {"2", "5"}).mutable_number()->clear_scale();
  EXPECT_THAT(Read(0).x, ElementsAre(1.5, 2));
}

TEST_F(CsvDatasetTest, HashesHaveRangesOfTheirOwnPerColumn) {
  v1::CsvHash& hash = *Use("categories", {"color", "shape"}).mutable_hash();
  hash.set_buckets(500);
  hash.set_per_column(true);
  EXPECT_THAT(Read(0).categories,
              ElementsAre(FarmFingerprint("red") % 500, 500 + FarmFingerprint("round") % 500));
  hash.set_buckets(501);
  EXPECT_EQ(Fault(),
            "data.csv.inputs.categories.hash.buckets: 501 buckets give ids up to 1001; the model "
            "takes 0 to 999");
}

TEST_F(CsvDatasetTest, VocabulariesNumberTheirLines) {
  v1::CsvVocabulary& vocabulary = *Use("categories", {"color", "color"}).mutable_vocabulary();
  vocabulary.set_path(folder_ + "/colors.txt");
  Write("colors.txt", "green\r\nred\n\n");
  EXPECT_THAT(Read(0).categories, ElementsAre(1, 1));
  EXPECT_THAT(Read(2).categories, ElementsAre(2, 2)) << "an empty line is the empty category";
  EXPECT_THAT(ReadFault(1), HasSubstr("line 3, column 3 'color': 'blue' is not in the vocabulary"));
  vocabulary.set_unknown(999);
  EXPECT_THAT(Read(1).categories, ElementsAre(999, 999));
  vocabulary.set_unknown(1000);
  EXPECT_EQ(Fault(),
            "data.csv.inputs.categories.vocabulary.unknown: 1000; the model takes 0 to 999");
  Write("colors.txt", "green\nred\ngreen\n");
  EXPECT_THAT(Fault(), HasSubstr("colors.txt: line 3: 'green' is twice in the vocabulary"));
}

TEST_F(CsvDatasetTest, TheFingerprintCoversVocabularies) {
  v1::CsvVocabulary& vocabulary = *Use("categories", {"color", "color"}).mutable_vocabulary();
  vocabulary.set_unknown(0);
  const auto fingerprint = [&](const std::string& name, const std::string& words) {
    Write(name, words);
    vocabulary.set_path(absl::StrCat(folder_, "/", name));
    return Open().value()->fingerprint();
  };
  const std::string first = fingerprint("colors.txt", "red\nblue\n");
  EXPECT_EQ(fingerprint("copy.txt", "red\r\nblue"), first) << "the same words";
  EXPECT_NE(fingerprint("colors.txt", "blue\nred\n"), first) << "in another order";
  EXPECT_NE(fingerprint("colors.txt", "redb\nlue\n"), first);
}

TEST_F(CsvDatasetTest, ErrorsNameFileLineAndColumn) {
  Write("a.csv", "class,width,color,shape,height\n0,1,a,b,c\n4,1,a,b,2\n1.5,1,a,b,2\n0,1,a\n");
  const std::string begin = absl::StrCat("data.csv.path: ", folder_, "/a.csv: record ");
  EXPECT_EQ(ReadFault(0), begin + "0 at byte 31: line 2, column 5 'height': 'c' is no number");
  EXPECT_EQ(ReadFault(1),
            begin + "1 at byte 41: line 3, column 1 'class': 4; the model takes 0 to 3");
  EXPECT_EQ(ReadFault(2),
            begin + "2 at byte 51: line 4, column 1 'class': 1.5; the model takes 0 to 3");
  EXPECT_EQ(ReadFault(3), begin + "3 at byte 63: line 5, 3 fields, but there are 5 columns");
  Write("a.csv", "class,width,color,shape,height\n0,1,\"a\"x,b,2\n0,1,a,b,1e39\n");
  EXPECT_EQ(ReadFault(0), begin + "0 at byte 31: line 2, text follows a closing quote");
  EXPECT_EQ(ReadFault(1), begin + "1 at byte 44: line 3, column 5 'height': 1e+39 is too large");
}

TEST_F(CsvDatasetTest, CountsTheLinesOfFourMebibytesAtMost) {
  const std::string header = "class,width,color,shape,height\n", line = "0,1,a,b,2\n",
                    bad = "0,x\n";
  std::string text = header;
  while (text.size() + line.size() + bad.size() <= 4 << 20) text += line;
  const int64_t lines = (text.size() - header.size()) / line.size();
  Write("a.csv", text + bad + line + bad);
  EXPECT_THAT(ReadFault(lines), HasSubstr(absl::StrCat(": line ", lines + 2, ", 2 fields")));
  EXPECT_THAT(
      ReadFault(lines + 2),
      HasSubstr(absl::StrCat("at byte ", text.size() + bad.size() + line.size(), ": 2 fields")));
}

TEST_F(CsvDatasetTest, ColumnsMustExistAndFit) {
  Use("x", {"width", "depth"});
  EXPECT_EQ(Fault(),
            "data.csv.inputs.x.columns: no column has the name 'depth'; there are 'class', "
            "'width', 'color', 'shape', 'height'");
  Use("x", {"4-6"});
  EXPECT_EQ(Fault(), "data.csv.inputs.x.columns: '4-6': columns are 1 to 5");
  Use("x", {"2-4"});
  EXPECT_EQ(Fault(), "data.csv.inputs.x.columns: 3 columns for the 2 elements of the model's x");
  Use("x", {"1-2"}).mutable_hash()->set_buckets(10);
  EXPECT_EQ(Fault(), "data.csv.inputs.x: categories are ids, but the model's x is f32: use number");
  csv().mutable_inputs()->erase("x");
  EXPECT_EQ(Fault(), "data.csv.inputs.x: required: columns for the model's x, [-1, 2]");
  Use("y", {"1"});
  EXPECT_EQ(Fault(),
            "data.csv.inputs.y: the model has no such input; it reads x, categories, classes");
  csv().mutable_inputs()->erase("y");
  Use("x", {"b", "1"}).mutable_number();
  Write("a.csv", "a,b,b\n");
  EXPECT_EQ(Fault(), "data.csv.inputs.x.columns: 2 columns have the name 'b'; use their numbers");
  Use("x", {"a", "b"}).mutable_number();
  Write("a.csv", "a;b\n");
  EXPECT_EQ(Fault(),
            "data.csv.inputs.x.columns: no column has the name 'a'; there are 'a;b'; the separator "
            "is ',', and data.csv.separator names another one");
  Use("x", {"1-2"}).mutable_number();
  EXPECT_EQ(Fault(),
            "data.csv.inputs.x.columns: '1-2': columns are 1 to 1; the separator is ',', and "
            "data.csv.separator names another one");
}

TEST_F(CsvDatasetTest, FilesWithoutAHeaderHaveNumberedColumns) {
  Use("x", {"2", "5"});
  Use("categories", {"3-4"});
  Use("classes", {"1"});
  Write("a.csv", "0,7,a,b,8\n1,3,a,b,4\n");
  EXPECT_EQ(Open().value()->samples(), 2);
  EXPECT_THAT(Read(0).x, ElementsAre(7, 8));
  csv().set_header(true);
  EXPECT_EQ(Open().value()->samples(), 1);
  EXPECT_THAT(Read(0).x, ElementsAre(3, 4));
  csv().set_header(false);
  csv().set_path(folder_ + "/a.tsv");
  Write("a.tsv", "0\t1\ta\tb\t2\n");
  EXPECT_THAT(Read(0).x, ElementsAre(1, 2));
  csv().set_separator("|");
  Write("a.tsv", "0|1|a|b|2\n");
  EXPECT_THAT(Read(0).x, ElementsAre(1, 2));
}

TEST_F(CsvDatasetTest, HoldsOutTheLastLinesOrReadsOtherFiles) {
  csv().set_holdout(0.34);
  EXPECT_EQ(Open().value()->samples(), 2);
  EXPECT_EQ(Open().value()->evaluation_samples(), 1);
  std::vector<int32_t> classes(1);
  ASSERT_TRUE(Open().value()->ReadEvaluation(0, 1, {{}, {}, BytesOf(classes)}).ok());
  EXPECT_THAT(classes, ElementsAre(1));
  csv().set_eval_path(folder_ + "/eval.csv");
  EXPECT_EQ(Fault(), "data.csv.holdout: cannot be given together with eval_path");
  csv().set_holdout(0);
  Write("eval.csv", "class,width,color,shape,height\n2,1,a,b,2\n3,1,a,b,2\n");
  const auto dataset = Open().value();
  EXPECT_EQ(dataset->samples(), 3);
  EXPECT_EQ(dataset->evaluation_samples(), 2);
  ASSERT_TRUE(dataset->ReadEvaluation(1, 1, {{}, {}, BytesOf(classes)}).ok());
  EXPECT_THAT(classes, ElementsAre(3));
}

TEST_F(CsvDatasetTest, SeveralFilesAreOneDataSet) {
  csv().set_path(folder_ + "/part-*.csv");
  const std::string header = "class,width,color,shape,height\n";
  Write("part-1.csv", header + "0,1,a,b,2\n1,3,a,b,4\n");
  Write("part-2.csv", header + "2,5,a,b,6\n3,7,a,b,x\n");
  EXPECT_EQ(Open().value()->samples(), 4);
  EXPECT_THAT(Read(2).x, ElementsAre(5, 6));
  std::vector<float> x(6);
  ASSERT_TRUE(Open().value()->Read(SamplesOf(0, {0, 1, 2}), {BytesOf(x), {}, {}}).ok());
  EXPECT_THAT(x, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(ReadFault(3), HasSubstr("part-2.csv: record 1 at byte 41: line 3, column 5"));
  Write("part-2.csv", "class,width,color,shape,length\n2,5,a,b,6\n");
  EXPECT_THAT(Fault(), HasSubstr("part-2.csv: its header differs from the first file's"));
}

TEST_F(CsvDatasetTest, TheIndexIsKeptAndCountsAsMemory) {
  const DataOptions options = {.index_folder = folder_ + "/index"};
  const std::string fingerprint = Open(options).value()->fingerprint();
  EXPECT_FALSE(std::filesystem::is_empty(options.index_folder));
  const auto again = Open(options);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->fingerprint(), fingerprint);
  EXPECT_THAT(Read(**again, 0).value().x, ElementsAre(1.5, 2));
  EXPECT_TRUE(Open({.held_bytes_max = 36}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Open({.held_bytes_max = 35}).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(
      Open({.held_bytes_max = 35, .index_folder = options.index_folder}).status()));
}

TEST_F(CsvDatasetTest, RefusesAFileThatChangedAfterItWasIndexed) {
  const auto dataset = Open().value();
  Write("a.csv", "class,width,color,shape,height\n1,1,a,b,2\n");
  const absl::Status status = Read(*dataset, 0).status();
  EXPECT_EQ(ReasonOf(status), "DATA_INVALID");
  EXPECT_THAT(std::string(status.message()), HasSubstr("changed after its index was made"));
}

TEST_F(CsvDatasetTest, ReadsCriteosFiles) {
  csv().set_path(folder_ + "/day_0");
  csv().set_criteo(true);
  Use("x", {"I1", "I13"}).mutable_number()->set_log(true);
  Use("categories", {"C1", "C26"});
  Use("classes", {"label"});
  std::vector<std::string> fields(40);
  fields[0] = "1";
  fields[1] = "3";
  fields[13] = "-2";
  fields[14] = "68fd1e64";
  Write("day_0", absl::StrJoin(fields, "\t") + "\n");
  const Row row = Read(0);
  EXPECT_THAT(row.x, ElementsAre(static_cast<float>(std::log1p(3.0)), 0));
  EXPECT_THAT(row.categories, ElementsAre(598, 263));
  EXPECT_THAT(row.classes, ElementsAre(1));
  fields.pop_back();
  Write("day_0", absl::StrJoin(fields, "\t") + "\n");
  EXPECT_THAT(Fault(), HasSubstr("39 columns, but Criteo's files have 40, separated by tabs"));
}

TEST_F(CsvDatasetTest, RefusesOtherFiles) {
  Write("a.csv", "\x1f\x8b\x08 gzip");
  EXPECT_THAT(Fault(), HasSubstr("is compressed with gzip, which has no random access; run: "
                                 "muster data convert"));
  Write("a.csv", "\n\n");
  EXPECT_EQ(Fault(), absl::StrCat("data.csv.path: ", folder_, "/a.csv: has no line"));
  Write("a.csv", "class,width,color,shape,height\n");
  EXPECT_EQ(Fault(), absl::StrCat("data.csv.path: ", folder_, "/a.csv: holds no sample"));
  Write("a.csv", "class,width,color,shape,height\n\"");
  EXPECT_EQ(Fault(), absl::StrCat("data.csv.path: ", folder_,
                                  "/a.csv: record 0 at byte 31: a quote is not closed"));
  csv().set_path(folder_ + "/b.csv");
  EXPECT_EQ(ReasonOf(Open().status()), "DATA_NOT_FOUND");
}

}  // namespace
}  // namespace muster::csv_dataset_test
