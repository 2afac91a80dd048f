#include "lib/graph/zoo/zoo.h"

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/shape_inference.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::zoo_test {
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

struct Elements {
  int64_t trained = 0;
  int64_t statistics = 0;
};

Elements CountElements(const v1::Graph& graph) {
  Elements elements;
  for (const v1::Parameter& parameter : graph.parameters()) {
    int64_t& count = parameter.has_statistic_momentum() ? elements.statistics : elements.trained;
    count += absl::c_accumulate(parameter.shape(), int64_t{1}, std::multiplies<>());
  }
  return elements;
}

// Every model, with sizes small enough to run anywhere.
struct TinyModel {
  const char* name;
  const char* args;
};

constexpr TinyModel kTinyModels[] = {
    {"linear", R"({"inputs": 3, "outputs": 2})"},
    {"mlp", R"({"inputs": 6, "hidden": "5,4", "classes": 3})"},
    {"lenet", "{}"},
    {"vgg16", R"({"image": 32, "width": 2, "hidden": 6, "classes": 5})"},
    {"resnet50", R"({"image": 64, "width": 2, "blocks": "1,2,1,1", "classes": 5})"},
    {"resnet101", R"({"image": 64, "width": 2, "blocks": "2,1", "variant": "keras"})"},
    {"inception_v3", R"({"image": 75, "shrink": 16, "classes": 5})"},
    {"lstm_lm", R"({"channels": 6, "context": 4, "vocabulary": 11})"},
    {"gnmt", R"({"layers": 3, "channels": 6, "vocabulary": 11, "source_length": 5,
                 "target_length": 4})"},
    {"transformer", R"({"layers": 2, "heads": 2, "channels": 8, "vocabulary": 11,
                        "source_length": 5, "target_length": 4})"},
    {"bert", R"({"layers": 2, "heads": 2, "channels": 8, "context": 5, "positions": 7,
                 "vocabulary": 11})"},
    {"gpt", R"({"layers": 2, "heads": 2, "channels": 8, "context": 5, "vocabulary": 11})"},
    {"gpt2", R"({"layers": 2, "heads": 2, "channels": 8, "context": 5, "positions": 7,
                 "vocabulary": 11})"},
    {"ncf", R"({"users": 7, "items": 5, "factors": 4, "layers": "8,6,4"})"},
};

class EveryModelTest : public testing::TestWithParam<TinyModel> {
 protected:
  const v1::Graph graph_ = BuildModel(Spec(GetParam().name, GetParam().args)).value();
};

INSTANTIATE_TEST_SUITE_P(Zoo, EveryModelTest, testing::ValuesIn(kTinyModels),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(EveryModelTest, HasTypesAndAScalarLossForAnyBatch) {
  for (const int64_t batch : {1, 7}) {
    const TensorTypes types = InferTypes(graph_, batch).value();
    EXPECT_EQ(types.at(graph_.loss()).ToString(), "f32[]");
    for (const v1::GraphInput& input : graph_.inputs()) {
      EXPECT_EQ(types.at(input.name()).shape[0], batch) << input.name();
    }
  }
}

TEST_P(EveryModelTest, HasAGradientForEveryParameterInEveryPrecision) {
  for (const v1::Precision precision : {v1::FP32, v1::BF16, v1::FP16}) {
    for (const bool recompute : {false, true}) {
      const absl::StatusOr<v1::Graph> graph =
          TrainingGraph(graph_, {.precision = precision, .recompute = recompute});
      ASSERT_TRUE(graph.ok()) << graph.status();
      EXPECT_EQ(graph->gradients_size(), graph_.parameters_size());
      EXPECT_TRUE(InferTypes(*graph, 3).ok()) << InferTypes(*graph, 3).status();
    }
  }
}

TEST_P(EveryModelTest, CanBeEvaluated) {
  const absl::StatusOr<v1::Graph> graph = InferenceGraph(graph_, {});

  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_TRUE(InferTypes(*graph, 3).ok()) << InferTypes(*graph, 3).status();
}

TEST_P(EveryModelTest, DecaysMatricesButNeitherBiasesNorNormsNorStatistics) {
  for (const v1::Parameter& parameter : graph_.parameters()) {
    const bool is_bias = absl::EndsWith(parameter.name(), "bias");  // an LSTM's bias is a matrix
    EXPECT_EQ(parameter.weight_decay(), parameter.shape_size() >= 2 && !is_bias)
        << parameter.name();
  }
}

TEST_P(EveryModelTest, HasStatisticsOnlyInBatchNorms) {
  for (const v1::Parameter& parameter : graph_.parameters()) {
    const bool is_mean = absl::EndsWith(parameter.name(), ".running_mean");
    const bool is_variance = absl::EndsWith(parameter.name(), ".running_var");
    EXPECT_EQ(parameter.has_statistic_momentum(), is_mean || is_variance) << parameter.name();
    if (!parameter.has_statistic_momentum()) continue;
    EXPECT_EQ(parameter.statistic_momentum(), 0.1) << parameter.name();
    EXPECT_EQ(parameter.initializer().constant(), is_variance) << parameter.name();
  }
}

TEST_P(EveryModelTest, EveryDropoutHasItsOwnSalt) {
  std::set<int64_t> salts;
  int dropouts = 0;
  for (const v1::Node& node : graph_.nodes()) {
    if (node.op() != "Dropout") continue;
    ++dropouts;
    salts.insert(node.attributes().at("salt").i());
  }
  EXPECT_EQ(salts.size(), dropouts);
}

// Published numbers of elements of the same models.
struct KnownCount {
  const char* name;
  const char* args;
  Elements elements;
};

class KnownCountTest : public testing::TestWithParam<KnownCount> {};

TEST_P(KnownCountTest, IsExact) {
  const auto& [name, args, expected] = GetParam();

  const Elements elements = CountElements(BuildModel(Spec(name, args)).value());

  EXPECT_EQ(elements.trained, expected.trained) << name << " " << args;
  EXPECT_EQ(elements.statistics, expected.statistics) << name << " " << args;
}

// torchvision.models.vgg16, resnet50, resnet101, inception_v3 (without its auxiliary classifier).
INSTANTIATE_TEST_SUITE_P(
    Torchvision, KnownCountTest,
    testing::Values(KnownCount{"vgg16", "{}", {138357544, 0}},
                    KnownCount{"resnet50", "{}", {25557032, 53120}},
                    KnownCount{"resnet101", "{}", {44549160, 105344}},
                    KnownCount{"inception_v3", R"({"gain": true})", {23834568, 34432}}));

// keras.applications: the numbers that summary() calls trainable and non-trainable.
INSTANTIATE_TEST_SUITE_P(
    Keras, KnownCountTest,
    testing::Values(KnownCount{"vgg16", "{}", {138357544, 0}},
                    KnownCount{"resnet50", R"({"variant": "keras"})", {25583592, 53120}},
                    KnownCount{"resnet101", R"({"variant": "keras"})", {44601832, 105344}},
                    KnownCount{"resnet101", R"({"bias": true})", {44601832, 105344}},
                    KnownCount{"inception_v3", "{}", {23817352, 34432}}));

// RNNModel of PyTorch's examples/word_language_model: torch.nn.LSTM between an embedding and a
// linear layer. Once with the medium sizes of the paper, once with the example's own on WikiText-2.
// Also torch.nn.Transformer without its two final norms, with a table of 37,000 tokens.
INSTANTIATE_TEST_SUITE_P(
    Torch, KnownCountTest,
    testing::Values(KnownCount{"lstm_lm", "{}", {19780400, 0}},
                    KnownCount{
                        "lstm_lm", R"({"channels": 200, "vocabulary": 33278})", {13987678, 0}},
                    KnownCount{"transformer", "{}", {63082496, 0}},
                    KnownCount{"transformer", R"({"size": "big"})", {214245376, 0}}));

// BertForPreTraining ("bert-base-uncased", "bert-large-uncased"), with the parameters of Google's
// checkpoints, and GPT2LMHeadModel ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl").
INSTANTIATE_TEST_SUITE_P(
    HuggingFace, KnownCountTest,
    testing::Values(KnownCount{"bert", "{}", {110106428, 0}},
                    KnownCount{"bert", R"({"size": "large", "context": 512})", {336226108, 0}},
                    KnownCount{"gpt2", "{}", {124439808, 0}},
                    KnownCount{"gpt2", R"({"context": 256})", {124439808, 0}},
                    KnownCount{"gpt2", R"({"size": "350m"})", {354823168, 0}},
                    KnownCount{"gpt2", R"({"size": "774m"})", {774030080, 0}},
                    KnownCount{"gpt2", R"({"size": "1.5b"})", {1557611200, 0}},
                    KnownCount{"gpt",
                               R"({"layers": 12, "heads": 12, "channels": 768, "context": 1024,
                              "vocabulary": 50257, "tied": true})",
                               {124439808, 0}}));

// The references of MLPerf Training 0.5: GNMT, and NCF on MovieLens-20M.
INSTANTIATE_TEST_SUITE_P(MlPerf, KnownCountTest,
                         testing::Values(KnownCount{"gnmt", "{}", {160671297, 0}},
                                         KnownCount{"ncf", "{}", {31832577, 0}}));

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

TEST(ZooTest, MlpHasTheGivenLayers) {
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

TEST(ZooTest, MlpTakesOneHiddenLayerAsAnIntegerAndNoneAsAnEmptyString) {
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
  EXPECT_EQ(CountElements(graph).trained, 61706);
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
  EXPECT_EQ(types.at("position_embedding.weight").ToString(), "f32[8, 16]");
  EXPECT_EQ(types.at("blocks.0.attention.lse").ToString(), "f32[7, 2, 8]");
  EXPECT_EQ(types.at("blocks.0.mlp.gelu").ToString(), "f32[7, 8, 64]");
  EXPECT_EQ(types.at(graph.logits()).ToString(), "f32[7, 8, 32]");
}

TEST(ZooTest, ResnetHasTheShapesOfThePaper) {
  const TensorTypes types = InferTypes(BuildModel(Spec("resnet50")).value(), 2).value();

  EXPECT_EQ(types.at("input").ToString(), "f32[2, 3, 224, 224]");
  EXPECT_EQ(types.at("maxpool").ToString(), "f32[2, 64, 56, 56]");
  EXPECT_EQ(types.at("layer1.2.relu3").ToString(), "f32[2, 256, 56, 56]");
  EXPECT_EQ(types.at("layer2.3.relu3").ToString(), "f32[2, 512, 28, 28]");
  EXPECT_EQ(types.at("layer3.5.relu3").ToString(), "f32[2, 1024, 14, 14]");
  EXPECT_EQ(types.at("layer4.2.relu3").ToString(), "f32[2, 2048, 7, 7]");
  EXPECT_EQ(types.at("logits").ToString(), "f32[2, 1000]");
}

TEST(ZooTest, TheVariantDecidesWhereResnetHasItsStride) {
  const auto shape = [](const char* variant) {
    return InferTypes(BuildModel(Spec("resnet50", variant)).value(), 2)
        .value()
        .at("layer2.0.conv1")
        .ToString();
  };

  EXPECT_EQ(shape(R"({"variant": "torchvision"})"), "f32[2, 128, 56, 56]");
  EXPECT_EQ(shape(R"({"variant": "keras"})"), "f32[2, 128, 28, 28]");
}

TEST(ZooTest, InceptionHasTheShapesOfThePaper) {
  const TensorTypes types = InferTypes(BuildModel(Spec("inception_v3")).value(), 2).value();

  EXPECT_EQ(types.at("stem.pool2").ToString(), "f32[2, 192, 35, 35]");
  EXPECT_EQ(types.at("blocks.2.concat").ToString(), "f32[2, 288, 35, 35]");
  EXPECT_EQ(types.at("blocks.7.concat").ToString(), "f32[2, 768, 17, 17]");
  EXPECT_EQ(types.at("blocks.8.concat").ToString(), "f32[2, 1280, 8, 8]");
  EXPECT_EQ(types.at("blocks.10.concat").ToString(), "f32[2, 2048, 8, 8]");
}

TEST(ZooTest, BertReadsAPairOfSentencesAndAddsUpTwoLosses) {
  const v1::Graph graph = BuildModel(Spec("bert")).value();
  const TensorTypes types = InferTypes(graph, 2).value();

  for (const char* input : {"tokens", "segments", "masked_tokens"}) {
    EXPECT_EQ(types.at(input).ToString(), "i32[2, 128]") << input;
  }
  EXPECT_EQ(types.at("next_sentence").ToString(), "i32[2]");
  EXPECT_EQ(types.at("mask").ToString(), "f32[2, 1, 1, 128]");
  EXPECT_EQ(types.at("next_sentence.logits").ToString(), "f32[2, 2]");
  EXPECT_EQ(types.at(graph.logits()).ToString(), "f32[2, 128, 30522]");
  EXPECT_EQ(types.at(graph.loss()).ToString(), "f32[]");
}

TEST(ZooTest, DropoutOfAttentionSplitsItIntoParts) {
  for (const char* name : {"bert", "gpt", "gpt2"}) {
    const v1::Graph graph =
        BuildModel(Spec(name, R"({"layers": 1, "heads": 2, "channels": 8, "context": 5,
                                  "dropout": 0, "attention_dropout": 0.1})"))
            .value();
    const TensorTypes types = InferTypes(graph, 3).value();

    EXPECT_EQ(types.at("blocks.0.attention.shares.dropout").ToString(), "f32[3, 2, 5, 5]") << name;
    EXPECT_EQ(types.at("blocks.0.attention").ToString(), "f32[3, 5, 8]") << name;
    EXPECT_EQ(absl::c_count_if(graph.nodes(),
                               [](const v1::Node& node) { return node.op() == "SelfAttention"; }),
              0)
        << name;
    EXPECT_TRUE(TrainingGraph(graph, {.precision = v1::FP16}).ok()) << name;
  }
}

TEST(ZooTest, NcfScoresAPairOfUserAndItem) {
  const v1::Graph graph = BuildModel(Spec("ncf")).value();
  const TensorTypes types = InferTypes(graph, 9).value();

  EXPECT_EQ(types.at("user").ToString(), "i32[9]");
  EXPECT_EQ(types.at("target").ToString(), "f32[9]");
  EXPECT_EQ(types.at("both").ToString(), "f32[9, 128]");
  EXPECT_EQ(types.at(graph.logits()).ToString(), "f32[9]");
}

TEST(ZooTest, InitialisersMatchTheReferenceImplementations) {
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
      {"resnet", "{}",
       "unknown model 'resnet'; there are linear, mlp, lenet, vgg16, resnet50, resnet101, "
       "inception_v3, lstm_lm, gnmt, transformer, bert, gpt, gpt2, ncf"},
      {"gpt", R"({"layer": 4})",
       "model 'gpt': argument 'layer' is unknown; there are layers, heads, channels, context, "
       "positions, vocabulary, tied, dropout, attention_dropout"},
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
      {"gpt", R"({"context": 16777216, "vocabulary": 16777216})",
       "model 'gpt': node 'logits' (Linear): output 'logits' is f32[1, 16777216, 16777216]: more "
       "than 1099511627776 elements"},
      {"gpt", R"({"layers": 1024, "heads": 1, "channels": 65536})",
       "model 'gpt': the model has 52777468428288 parameters, more than 1099511627776"},
      {"gpt", R"({"context": 8, "positions": 4})",
       "model 'gpt': argument 'positions' is 4, less than context = 8"},
      {"gpt2", R"({"context": 2000})",
       "model 'gpt2': argument 'positions' is 1024, less than context = 2000"},
      {"gpt2", R"({"size": "tiny"})",
       "model 'gpt2': argument 'size' must be one of 124m, 350m, 774m, 1.5b"},
      {"gpt2", R"({"dropout": 1})",
       "model 'gpt2': argument 'dropout' must be a number from 0 to below 1 (is 1)"},
      {"gpt2", R"({"dropout": "0.1"})",
       "model 'gpt2': argument 'dropout' must be a number from 0 to below 1"},
      {"bert", R"({"context": 513})",
       "model 'bert': argument 'positions' is 512, less than context = 513"},
      {"bert", R"({"size": 1})", "model 'bert': argument 'size' must be one of base, large"},
      {"transformer", R"({"heads": 7})",
       "model 'transformer': argument 'heads' is 7, which does not divide channels = 512"},
      {"gnmt", R"({"layers": 1})", "model 'gnmt': argument 'layers' must be at least 2"},
      {"vgg16", R"({"image": 100})",
       "model 'vgg16': argument 'image' must be a multiple of 32 (is 100)"},
      {"resnet50", R"({"blocks": ""})",
       "model 'resnet50': argument 'blocks' must have from 1 to 8 stages"},
      {"resnet50", R"({"blocks": "2,2000"})",
       "model 'resnet50': argument 'blocks' has a stage of more than 1024"},
      {"resnet50", R"({"variant": "v2"})",
       "model 'resnet50': argument 'variant' must be one of torchvision, keras"},
      {"inception_v3", R"({"image": 74})",
       "model 'inception_v3': argument 'image' must be at least 75 (is 74)"},
      {"inception_v3", R"({"shrink": 3})",
       "model 'inception_v3': argument 'shrink' is 3, which does not divide the common factor of "
       "all widths = 16"},
      {"ncf", R"({"layers": "7,4"})",
       "model 'ncf': argument 'layers' must begin with an even width: half of it for the user's "
       "embedding and half for the item's"},
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
}  // namespace muster::zoo_test
