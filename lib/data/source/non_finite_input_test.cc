#include "lib/data/source/non_finite_input.h"

#include <zlib.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/data/dataset.h"
#include "lib/data/format/zip_writer.h"
#include "lib/data/source/open_dataset.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::non_finite_input_test {
namespace {

// Reads f32 "input" and "target", one value each.
v1::Graph LineGraph() {
  v1::Graph graph;
  for (const char* name : {"input", "target"}) {
    v1::GraphInput& input = *graph.add_inputs();
    input.set_name(name);
    input.set_dtype(v1::DTYPE_F32);
    input.add_shape(-1);
    input.add_shape(1);
  }
  return graph;
}

// f32[values, 1] in NumPy's format.
std::string Npy(const std::vector<float>& values) {
  std::string header =
      absl::StrCat("{'descr': '<f4', 'fortran_order': False, 'shape': (", values.size(), ", 1), }");
  header.resize(117, ' ');
  return absl::StrCat("\x93NUMPY\x01", std::string("\0\x76\0", 3), header, "\n",
                      std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size()));
}

// Returns the path of the file.
std::string Write(const std::string& name, const std::string& content) {
  const std::string path = absl::StrCat(testing::TempDir(), "/non_finite_input_test_", name);
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

std::string WriteNpy(const std::string& name, const std::vector<float>& values) {
  return Write(name, Npy(values));
}

TEST(NonFiniteInputTest, ARowOfAFileIsNamedWithItsInput) {
  v1::DataSpec spec;
  auto& inputs = *spec.mutable_npy()->mutable_inputs();
  inputs["input"] = WriteNpy("input.npy", {0, 1, 2, std::nanf(""), 4, 5, 6, 7});
  inputs["target"] =
      WriteNpy("target.npy", {0, 1, 2, 3, -std::numeric_limits<float>::infinity(), 5, 6, 7});
  const v1::Graph graph = LineGraph();
  const auto dataset = OpenDataset(spec, graph).value();

  EXPECT_EQ(NameNonFiniteInput(*dataset, spec, graph, SamplesOf(0, {1, 3, 4})),
            absl::StrCat("input 'input' has a NaN in row 3 of ", inputs["input"]));
  EXPECT_EQ(NameNonFiniteInput(*dataset, spec, graph, SamplesOf(0, {4, 3})),
            absl::StrCat("input 'target' has an infinite value in row 4 of ", inputs["target"]));
  EXPECT_EQ(NameNonFiniteInput(*dataset, spec, graph, SamplesOf(0, {0, 1, 2, 5})), "");
}

TEST(NonFiniteInputTest, ARowOfAnArchiveIsNamedWithItsArray) {
  v1::DataSpec spec;
  const std::string npy = Npy({0, std::nanf(""), 2});
  ZipWriter writer;
  std::string archive = writer.Next(
      "x.npy", crc32_z(0, reinterpret_cast<const Bytef*>(npy.data()), npy.size()), npy.size());
  absl::StrAppend(&archive, npy, writer.End());
  spec.mutable_npz()->set_path(Write("a.npz", archive));
  for (const char* name : {"input", "target"}) (*spec.mutable_npz()->mutable_inputs())[name] = "x";
  const v1::Graph graph = LineGraph();
  const auto dataset = OpenDataset(spec, graph).value();

  EXPECT_EQ(NameNonFiniteInput(*dataset, spec, graph, SamplesOf(0, {0, 1})),
            absl::StrCat("input 'input' has a NaN in row 1 of ", spec.npz().path(), ": array 'x'"));
}

TEST(NonFiniteInputTest, AHeldOutSampleIsOfARowBehindThoseThatTrain) {
  v1::DataSpec spec;
  spec.mutable_npy()->set_holdout(0.25);
  auto& inputs = *spec.mutable_npy()->mutable_inputs();
  inputs["input"] = WriteNpy("held_out.npy", {0, 1, 2, 3, 4, 5, 6, std::nanf("")});
  inputs["target"] = WriteNpy("held_out_target.npy", {0, 1, 2, 3, 4, 5, 6, 7});
  const v1::Graph graph = LineGraph();
  const auto dataset = OpenDataset(spec, graph).value();
  ASSERT_EQ(dataset->evaluation_samples(), 2);

  EXPECT_EQ(NameNonFiniteHeldOut(*dataset, spec, graph, 0, 2),
            absl::StrCat("input 'input' has a NaN in row 7 of ", inputs["input"]));
  EXPECT_EQ(NameNonFiniteHeldOut(*dataset, spec, graph, 0, 1), "");
}

TEST(NonFiniteInputTest, WithoutAFileTheSampleIsNamed) {
  v1::DataSpec spec;
  spec.mutable_linear()->set_samples(8);
  spec.mutable_linear()->set_slope(std::nan(""));
  const v1::Graph graph = LineGraph();
  const auto dataset = OpenDataset(spec, graph).value();

  EXPECT_EQ(NameNonFiniteInput(*dataset, spec, graph, SamplesOf(0, {5, 6})),
            "input 'target' has a NaN in sample 5");
}

// Ids are integers, so all of them are finite.
TEST(NonFiniteInputTest, AModelThatReadsOnlyIdsHasNone) {
  v1::DataSpec spec;
  spec.mutable_synthetic()->set_samples(4);
  v1::Graph graph = LineGraph();
  for (v1::GraphInput& input : *graph.mutable_inputs()) input.set_dtype(v1::DTYPE_I32);
  const auto dataset = OpenDataset(spec, graph).value();

  EXPECT_EQ(NameNonFiniteInput(*dataset, spec, graph, SamplesOf(0, {0, 1, 2, 3})), "");
}

}  // namespace
}  // namespace muster::non_finite_input_test
