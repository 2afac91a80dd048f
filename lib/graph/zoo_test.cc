#include "lib/graph/zoo.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "lib/graph/shape_inference.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {
namespace {

using ::testing::ElementsAre;

v1::ModelSpec Spec(const std::string& name, const std::string& args = "{}") {
  v1::ModelSpec spec;
  spec.mutable_zoo()->set_name(name);
  EXPECT_TRUE(
      google::protobuf::util::JsonStringToMessage(args, spec.mutable_zoo()->mutable_args()).ok())
      << args;
  return spec;
}

std::vector<v1::Parameter> Parameters(const v1::ModelSpec& spec) {
  const v1::Graph graph = BuildModel(spec).value();
  return {graph.parameters().begin(), graph.parameters().end()};
}

std::vector<std::string> ParameterNames(const v1::Graph& graph) {
  std::vector<std::string> names;
  for (const v1::Parameter& parameter : graph.parameters()) names.push_back(parameter.name());
  return names;
}

int64_t ParameterElements(const v1::Graph& graph) {
  const TensorTypes types = InferTypes(graph, 1).value();
  int64_t elements = 0;
  for (const v1::Parameter& parameter : graph.parameters())
    elements += types.at(parameter.name()).elements();
  return elements;
}

TEST(ZooTest, LinearPredictsWithOneMatrix) {
  const v1::Graph graph = BuildModel(Spec("linear", R"({"inputs": 3, "outputs": 2})")).value();
  const TensorTypes types = InferTypes(graph, 7).value();

  EXPECT_EQ(types.at("input").ToString(), "f32[7, 3]");
  EXPECT_EQ(types.at("target").ToString(), "f32[7, 2]");
  EXPECT_EQ(types.at("prediction").ToString(), "f32[7, 2]");
  EXPECT_EQ(types.at(graph.loss()).ToString(), "f32[]");
  EXPECT_THAT(ParameterNames(graph), ElementsAre("weight", "bias"));
  EXPECT_EQ(graph.logits(), "");
  EXPECT_EQ(graph.correct(), "");
}

TEST(ZooTest, MlpHasTheLayersAsked) {
  const v1::Graph graph =
      BuildModel(Spec("mlp", R"({"inputs": 16, "hidden": "12, 8", "classes": 5})")).value();
  const TensorTypes types = InferTypes(graph, 7).value();

  EXPECT_THAT(ParameterNames(graph),
              ElementsAre("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias",
                          "layers.2.weight", "layers.2.bias"));
  EXPECT_EQ(types.at("layers.1.weight").ToString(), "f32[8, 12]");
  EXPECT_EQ(types.at(graph.logits()).ToString(), "f32[7, 5]");
  EXPECT_EQ(types.at(graph.correct()).ToString(), "f32[]");
  EXPECT_EQ(types.at("target").ToString(), "i32[7]");
}

TEST(ZooTest, MlpTakesOneHiddenLayerAsAnIntegerAndNoneAsNothing) {
  EXPECT_EQ(BuildModel(Spec("mlp", R"({"hidden": 32})"))->parameters_size(), 4);
  EXPECT_EQ(BuildModel(Spec("mlp", R"({"hidden": ""})"))->parameters_size(), 2);
}

TEST(ZooTest, MlpFlattensImages) {
  const v1::Graph graph =
      BuildModel(Spec("mlp", R"({"height": 28, "width": 20, "channels": 3})")).value();
  const TensorTypes types = InferTypes(graph, 7).value();

  EXPECT_EQ(types.at("input").ToString(), "f32[7, 3, 28, 20]");
  EXPECT_EQ(types.at("layers.0.weight").ToString(), "f32[256, 1680]");
}

TEST(ZooTest, LenetHasTheShapesOfThePaper) {
  const v1::Graph graph = BuildModel(Spec("lenet")).value();
  const TensorTypes types = InferTypes(graph, 7).value();

  EXPECT_EQ(types.at("conv1").ToString(), "f32[7, 6, 28, 28]");
  EXPECT_EQ(types.at("pool1").ToString(), "f32[7, 6, 14, 14]");
  EXPECT_EQ(types.at("conv2").ToString(), "f32[7, 16, 10, 10]");
  EXPECT_EQ(types.at("flatten").ToString(), "f32[7, 400]");
  EXPECT_EQ(types.at(graph.logits()).ToString(), "f32[7, 10]");
  EXPECT_EQ(ParameterElements(graph), 61706);
}

TEST(ZooTest, GptHasTheShapesOfItsArguments) {
  const v1::Graph graph =
      BuildModel(Spec("gpt", R"({"layers": 1, "heads": 2, "channels": 16, "context": 8,
                                                     "vocabulary": 32})"))
          .value();
  const TensorTypes types = InferTypes(graph, 7).value();

  EXPECT_THAT(
      ParameterNames(graph),
      ElementsAre("token_embedding.weight", "position_embedding.weight", "blocks.0.norm1.weight",
                  "blocks.0.norm1.bias", "blocks.0.attention.qkv.weight",
                  "blocks.0.attention.qkv.bias", "blocks.0.attention.projection.weight",
                  "blocks.0.attention.projection.bias", "blocks.0.norm2.weight",
                  "blocks.0.norm2.bias", "blocks.0.mlp.expand.weight", "blocks.0.mlp.expand.bias",
                  "blocks.0.mlp.contract.weight", "blocks.0.mlp.contract.bias", "final_norm.weight",
                  "final_norm.bias", "head.weight"));
  EXPECT_EQ(types.at("input").ToString(), "i32[7, 8]");
  EXPECT_EQ(types.at("target").ToString(), "i32[7, 8]");
  EXPECT_EQ(types.at("blocks.0.attention.probabilities").ToString(), "f32[7, 2, 8, 8]");
  EXPECT_EQ(types.at("blocks.0.mlp.gelu").ToString(), "f32[7, 8, 64]");
  EXPECT_EQ(types.at(graph.logits()).ToString(), "f32[7, 8, 32]");
}

TEST(ZooTest, GptOfTheSizesOfGpt2HasItsNumberOfParameters) {
  const v1::Graph graph =
      BuildModel(Spec("gpt", R"({"layers": 12, "heads": 12, "channels": 768, "context": 1024,
                                 "vocabulary": 50257, "tied": true})"))
          .value();

  EXPECT_EQ(ParameterElements(graph), 124439808);  // Hugging Face's "gpt2"
}

TEST(ZooTest, MatricesDecayAndVectorsDoNot) {
  for (const char* name : {"linear", "mlp", "lenet", "gpt"}) {
    for (const v1::Parameter& parameter : Parameters(Spec(name))) {
      EXPECT_EQ(parameter.weight_decay(), parameter.shape_size() >= 2) << parameter.name();
    }
  }
}

TEST(ZooTest, InitialisersAreThoseOfTheReferenceImplementations) {
  for (const v1::Parameter& parameter : Parameters(Spec("gpt", R"({"layers": 8})"))) {
    const std::string& name = parameter.name();
    const v1::Initializer& initializer = parameter.initializer();
    if (absl::EndsWith(name, "projection.weight") || absl::EndsWith(name, "contract.weight")) {
      EXPECT_DOUBLE_EQ(initializer.normal(), 0.005) << name;
    } else if (parameter.shape_size() == 2) {
      EXPECT_DOUBLE_EQ(initializer.normal(), 0.02) << name;
    } else {
      ASSERT_TRUE(initializer.has_constant()) << name;
      EXPECT_EQ(initializer.constant(),
                absl::StrContains(name, "norm") && absl::EndsWith(name, "weight"))
          << name;
    }
  }
  for (const v1::Parameter& parameter : Parameters(Spec("lenet"))) {
    if (absl::StartsWith(parameter.name(), "conv2.")) {
      EXPECT_DOUBLE_EQ(parameter.initializer().uniform(), 1 / std::sqrt(150.0));
    }
  }
}

TEST(ZooTest, FaultyArgumentsAreNamed) {
  const struct {
    const char* model;
    const char* args;
    const char* message;
  } faults[] = {
      {"resnet", "{}", "unknown model 'resnet'; there are linear, mlp, lenet, gpt"},
      {"gpt", R"({"layer": 4})",
       "model 'gpt': argument 'layer' is unknown; there are layers, heads, channels, context, "
       "vocabulary, tied"},
      {"gpt", R"({"heads": 3})",
       "model 'gpt': argument 'heads' is 3, which does not divide channels = 128"},
      {"gpt", R"({"layers": 0})",
       "model 'gpt': argument 'layers' must be an integer from 1 to 1024 (is 0)"},
      {"gpt", R"({"layers": 2.5})",
       "model 'gpt': argument 'layers' must be an integer from 1 to 1024 (is 2.5)"},
      {"gpt", R"({"layers": "2"})",
       "model 'gpt': argument 'layers' must be an integer from 1 to 1024"},
      {"gpt", R"({"layers": null})",
       "model 'gpt': argument 'layers' must be an integer from 1 to 1024"},
      {"gpt", R"({"tied": 1})", "model 'gpt': argument 'tied' must be true or false"},
      {"gpt", R"({"channels": -8, "context": 1e30})",
       "model 'gpt': argument 'channels' must be an integer from 1 to 16777216 (is -8); model "
       "'gpt': argument "
       "'context' must be an integer from 1 to 16777216 (is 1e+30); model 'gpt': argument 'heads' "
       "is 4, which "
       "does not divide channels = 1"},
      {"gpt", R"({"context": 16777216})",
       "model 'gpt': node 'blocks.0.attention' (CausalAttention): output "
       "'blocks.0.attention.probabilities' is "
       "f32[1, 4, 16777216, 16777216]: more than 1099511627776 elements"},
      {"gpt", R"({"layers": 1024, "heads": 1, "channels": 65536})",
       "model 'gpt': the model has 52777468428288 parameters, more than 1099511627776"},
      {"mlp", R"({"hidden": "12,,8"})",
       "model 'mlp': argument 'hidden' must be an integer from 1 to 16777216"},
      {"mlp", R"({"hidden": true})",
       "model 'mlp': argument 'hidden' must be an integer from 1 to 16777216"},
      {"mlp", R"({"height": 28})",
       "model 'mlp': argument 'height' must be given together with the other side of the image"},
      {"mlp", R"({"channels": 3})",
       "model 'mlp': argument 'channels' is for images: height and width are missing"},
      {"mlp", R"({"height": 4, "width": 4, "inputs": 17})",
       "model 'mlp': argument 'inputs' is 17 but channels x height x width is 16"},
      {"lenet", R"({"classes": "ten"})",
       "model 'lenet': argument 'classes' must be an integer from 1 to 16777216"},
  };
  for (const auto& fault : faults) {
    const absl::Status status = BuildModel(Spec(fault.model, fault.args)).status();

    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), "MODEL_INVALID");
    EXPECT_EQ(std::string(status.message()), fault.message);
  }
  EXPECT_EQ(std::string(BuildModel({}).status().message()), "no model is given");
}

}  // namespace
}  // namespace muster
