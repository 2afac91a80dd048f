#include "lib/graph/model/external_model.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/graph/model/model.h"
#include "lib/limits/limits.h"

namespace muster::external_model_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename... Numbers>
std::string Bytes(Numbers... numbers) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&numbers), sizeof(numbers)), ...);
  return bytes;
}

std::string FileOf(const std::string& json, const std::string& data) {
  return absl::StrCat(Bytes(uint64_t{json.size()}), json, data);
}

absl::StatusOr<Model> Load(const std::string& content) {
  v1::ModelSpec spec;
  spec.mutable_external()->set_path(testing::TempDir() + "/model.safetensors");
  std::ofstream(spec.external().path(), std::ios::binary | std::ios::trunc) << content;
  return LoadModel(spec);
}

std::string ErrorOf(const std::string& json, const std::string& data = "") {
  return std::string(Load(FileOf(json, data)).status().message());
}

// Four tensors, not in the order of their names.
std::string KnownFile() {
  return FileOf(R"({"__metadata__":{"muster.statistics":"[\"mean\"]"},)"
                R"("a":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},)"
                R"("b":{"dtype":"BF16","shape":[],"data_offsets":[12,14]},)"
                R"("mean":{"dtype":"F32","shape":[1],"data_offsets":[14,18]},)"
                R"("w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})",
                Bytes(1.5f, -2.0f, uint16_t{0x3c00}, uint16_t{0xc100}, uint16_t{0x4049}, 7.0f));
}

TEST(ExternalModelTest, HasTheTensorsInTheOrderOfTheirDataAsFloats) {
  const absl::StatusOr<Model> model = Load(KnownFile());

  ASSERT_TRUE(model.ok()) << model.status();
  const v1::Graph& graph = model->graph;
  EXPECT_FALSE(graph.name().empty());
  EXPECT_EQ(graph.nodes_size() + graph.inputs_size(), 0);
  ASSERT_EQ(graph.parameters_size(), 4);
  EXPECT_EQ(graph.parameters(0).name(), "w");
  EXPECT_THAT(graph.parameters(0).shape(), ElementsAre(1, 2));
  EXPECT_TRUE(graph.parameters(0).weight_decay());
  EXPECT_FALSE(graph.parameters(0).has_statistic_momentum());
  EXPECT_EQ(graph.parameters(2).name(), "b");
  EXPECT_TRUE(graph.parameters(2).shape().empty());
  EXPECT_EQ(graph.parameters(3).name(), "mean");
  EXPECT_EQ(graph.parameters(3).statistic_momentum(), 1);
  EXPECT_FALSE(graph.parameters(3).weight_decay());
  EXPECT_THAT(model->initial_values, ElementsAre(ElementsAre(1.5f, -2.0f), ElementsAre(1.0f, -2.5f),
                                                 ElementsAre(3.140625f), ElementsAre(7.0f)));
}

TEST(ExternalModelTest, NamesATensorThatCannotBeAParameter) {
  const auto one = [](const std::string& name, const std::string& rest) {
    return absl::StrCat("{\"", name, "\":{", rest, "}}");
  };
  EXPECT_THAT(ErrorOf(one("steps", R"("dtype":"I64","shape":[],"data_offsets":[0,8])"), "12345678"),
              HasSubstr("'steps' is of type I64; parameters are F32, F16 or BF16: convert it"));
  EXPECT_THAT(ErrorOf(one("w", R"("dtype":"F32","shape":[0,3],"data_offsets":[0,0])")),
              HasSubstr("'w' has no elements"));
  const std::string f32 = R"("dtype":"F32","shape":[],"data_offsets":[0,4])";
  EXPECT_THAT(ErrorOf(one(std::string(257, 'x'), f32), "1234"), HasSubstr("a name of 257 bytes"));
  EXPECT_THAT(ErrorOf(one("", f32), "1234"), HasSubstr("a name of 0 bytes"));
  EXPECT_THAT(ErrorOf(one(R"(a\nb)", f32), "1234"), HasSubstr(R"('a\nb' has a control character)"));
}

TEST(ExternalModelTest, SaysWhatIsWrongWithTheFile) {
  const std::string w = R"("w":{"dtype":"F32","shape":[],"data_offsets":[0,4]})";
  const std::string overlapping = R"("v":{"dtype":"F32","shape":[],"data_offsets":[2,6]})";
  EXPECT_THAT(ErrorOf("{" + w + "," + overlapping + "}", "123456"), HasSubstr("'v' begins at 2"));
  EXPECT_THAT(ErrorOf("{" + w + "," + w + "}", "1234"), HasSubstr("duplicate key 'w'"));
  EXPECT_THAT(ErrorOf("{" + w + "}", "123"), HasSubstr("'w' ends beyond the file"));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("has no tensors"));
  v1::ModelSpec missing;
  missing.mutable_external()->set_path(testing::TempDir() + "/missing");
  EXPECT_TRUE(absl::IsNotFound(LoadModel(missing).status()));
}

TEST(ExternalModelTest, StatisticsMustBeTensorsAndLeaveOneToTrain) {
  const auto with = [](const std::string& list) {
    return ErrorOf(absl::StrCat(R"({"__metadata__":{"muster.statistics":")", list,
                                R"("},"w":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})"),
                   "1234");
  };
  EXPECT_THAT(with("mean"), HasSubstr("'muster.statistics' is not a JSON list of names"));
  EXPECT_THAT(with(R"([\"mean\"])"), HasSubstr("that is the name of no tensor"));
  EXPECT_THAT(with("[7]"), HasSubstr("that is the name of no tensor"));
  EXPECT_THAT(with(R"([\"w\"])"), HasSubstr("nothing is left to train"));
}

TEST(ExternalModelTest, TooManyTensorsAreRefused) {
  std::string json = "{";
  for (int64_t i = 0; i <= limits::kParametersMax; ++i) {
    absl::StrAppend(&json, i > 0 ? "," : "", "\"w", i,
                    R"(":{"dtype":"F32","shape":[],"data_offsets":[)", 4 * i, ",", 4 * i + 4, "]}");
  }
  EXPECT_THAT(ErrorOf(json + "}", std::string(4 * (limits::kParametersMax + 1), '\0')),
              HasSubstr("has 65537 tensors; at most 65536"));
}

TEST(ExternalModelTest, MutatedFilesAreReadOrRefused) {
  std::mt19937 random(7);
  const std::string known = KnownFile();
  for (int round = 0; round < 2000; ++round) {
    std::string mutated = known;
    for (int flips = 0; flips < 3; ++flips) {
      mutated[random() % mutated.size()] = static_cast<char>(random());
    }
    if (round % 4 == 0) mutated.resize(random() % mutated.size());
    const absl::StatusOr<Model> model = Load(mutated);
    if (!model.ok()) continue;
    EXPECT_EQ(model->graph.parameters_size(), model->initial_values.size());
  }
}

}  // namespace
}  // namespace muster::external_model_test
