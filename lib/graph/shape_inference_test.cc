#include "lib/graph/shape_inference.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "lib/graph/autodiff.h"
#include "lib/graph/zoo.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

v1::Graph Parse(const std::string& text) {
  v1::Graph graph;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &graph)) << text;
  return graph;
}

// Something of every rank and type for faulty nodes to stumble over.
constexpr absl::string_view kTensors = R"(
    inputs { name: "x" dtype: DTYPE_F32 shape: [-1, 64, 100] }
    inputs { name: "qkv" dtype: DTYPE_F32 shape: [-1, 8, 12] }
    inputs { name: "image" dtype: DTYPE_F32 shape: [-1, 3, 9, 8] }
    inputs { name: "ids" dtype: DTYPE_I32 shape: [-1, 64] }
    inputs { name: "labels" dtype: DTYPE_I32 shape: -1 }
    parameters { name: "w" shape: [512, 128] }
    parameters { name: "w100" shape: [7, 100] }
    parameters { name: "bias" shape: 6 }
    parameters { name: "kernel" shape: [6, 3, 5, 5] }
    parameters { name: "oblong" shape: [6, 3, 5, 4] }
    parameters { name: "large" shape: [1, 1099511627776] }
)";

struct Fault {
  const char* nodes;
  const char* message;
};

class FaultyNodeTest : public testing::TestWithParam<Fault> {};

TEST_P(FaultyNodeTest, IsNamedWithOpAndShapes) {
  const v1::Graph graph = Parse(absl::StrCat(kTensors, GetParam().nodes));

  const absl::Status status = InferTypes(graph, /*batch=*/8).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Nodes, FaultyNodeTest,
    testing::Values(
        Fault{R"(nodes { name: "blocks.0.fc" op: "Linear" inputs: ["x", "w"] outputs: "y" })",
              "node 'blocks.0.fc' (Linear): x is f32[8, 64, 100] but w is f32[512, 128]: inner "
              "dimensions 100 and 128 differ"},
        Fault{R"(nodes { name: "n" op: "Linear" inputs: ["x", "w100", "bias"] outputs: "y" })",
              "node 'n' (Linear): w is f32[7, 100] but bias is f32[6]: outer dimensions 7 and 6 "
              "differ"},
        Fault{R"(nodes { name: "n" op: "Linear" inputs: ["x", "kernel"] outputs: "y" })",
              "node 'n' (Linear): w is f32[6, 3, 5, 5], must be f32[outer, inner]"},
        Fault{R"(nodes { name: "n" op: "Linear" inputs: ["ids", "w"] outputs: "y" })",
              "node 'n' (Linear): x is i32[8, 64], must be f32[..., inner]"},
        Fault{R"(nodes { name: "n" op: "Linear" inputs: ["x"] outputs: "y" })",
              "node 'n' (Linear): has 1 inputs, takes x, w, bias (optional)"},
        Fault{R"(nodes { name: "n" op: "Linear" inputs: ["x", "w", "bias", "bias"] outputs: "y" })",
              "node 'n' (Linear): has 4 inputs, takes x, w, bias (optional)"},
        Fault{R"(nodes { name: "n" op: "Linear" inputs: ["x", "w100"] outputs: ["y", "z"] })",
              "node 'n' (Linear): has 2 outputs, makes y"},
        Fault{R"(nodes { name: "n" op: "Accumulate" outputs: "y" })",
              "node 'n' (Accumulate): has 0 inputs, takes x"},
        Fault{R"(nodes { name: "n" op: "Accumulate" inputs: ["w", "w", "bias"] outputs: "y" })",
              "node 'n' (Accumulate): x is f32[512, 128] but x is f32[6]: dimensions [512, 128] "
              "and [6] differ"},
        Fault{R"(nodes { name: "n" op: "Conv2d" inputs: ["image", "oblong"] outputs: "y" })",
              "node 'n' (Conv2d): w is f32[6, 3, 5, 4]: kernel dimensions 5 and 4 differ"},
        Fault{R"(nodes { name: "n" op: "MaxPool2d" inputs: "image" outputs: "y"
                         attributes { key: "kernel" value { i: 9 } } })",
              "node 'n' (MaxPool2d): x is f32[8, 3, 9, 8]: a kernel of 9 does not fit into the "
              "padded width of 8"},
        Fault{R"(nodes { name: "n" op: "MaxPool2d" inputs: "image" outputs: "y" })",
              "node 'n' (MaxPool2d): attribute 'kernel' is missing"},
        Fault{R"(nodes { name: "n" op: "Conv2d" inputs: ["image", "kernel"] outputs: "y"
                         attributes { key: "stride" value { i: 0 } } })",
              "node 'n' (Conv2d): attribute 'stride' is 0, must be in [1, 1048576]"},
        Fault{R"(nodes { name: "n" op: "Conv2d" inputs: ["image", "kernel"] outputs: "y"
                         attributes { key: "padding" value { f: 1 } } })",
              "node 'n' (Conv2d): attribute 'padding' must be an integer"},
        Fault{R"(nodes { name: "n" op: "Conv2d" inputs: ["image", "kernel"] outputs: "y"
                         attributes { key: "padding" value { i: 9223372036854775807 } } })",
              "node 'n' (Conv2d): attribute 'padding' is 9223372036854775807, must be in [0, "
              "1048576]"},
        Fault{R"(nodes { name: "n" op: "Relu" inputs: "x" outputs: "y"
                         attributes { key: "slope" value { f: 1 } } })",
              "node 'n' (Relu): unknown attribute 'slope'"},
        Fault{R"(nodes { name: "n" op: "LayerNorm" inputs: ["x", "bias", "bias"]
                         outputs: ["y", "m", "r"] attributes { key: "epsilon" value { f: nan } } })",
              "node 'n' (LayerNorm): attribute 'epsilon' is nan, must be in [0, 1]"},
        Fault{R"(nodes { name: "n" op: "Add" inputs: ["x", "bias"] outputs: "y" })",
              "node 'n' (Add): a is f32[8, 64, 100], b is f32[6]: the second shape is not a suffix "
              "of the first"},
        Fault{R"(nodes { name: "n" op: "CausalAttention" inputs: "qkv" outputs: ["y", "p"]
                         attributes { key: "heads" value { i: 3 } } })",
              "node 'n' (CausalAttention): qkv is f32[8, 8, 12]: 3 heads do not divide 4 channels"},
        Fault{R"(nodes { name: "n" op: "CausalAttention" inputs: "x" outputs: ["y", "p"]
                         attributes { key: "heads" value { i: 1 } } })",
              "node 'n' (CausalAttention): qkv is f32[8, 64, 100]: the last dimension 100 is not 3 "
              "x channels"},
        Fault{R"(nodes { name: "n" op: "SoftmaxCrossEntropy" inputs: ["x", "labels"]
                         outputs: ["l", "p"] })",
              "node 'n' (SoftmaxCrossEntropy): logits is f32[8, 64, 100] but target is i32[8]: "
              "dimensions [8, 64] and [8] differ"},
        Fault{R"(nodes { name: "n" op: "Sigmoid" inputs: "x" outputs: "y" })",
              "node 'n' (Sigmoid): unknown op"},
        Fault{R"(nodes { name: "n" op: "Relu" inputs: "z" outputs: "y" })",
              "node 'n' (Relu): input 'z' is not defined"},
        Fault{R"(nodes { name: "n" op: "Relu" inputs: "b" outputs: "a" }
                 nodes { name: "m" op: "Relu" inputs: "a" outputs: "b" })",
              "node 'n' (Relu): input 'b' is made only by node 'm': nodes must be in topological "
              "order"},
        Fault{R"(nodes { name: "n" op: "Relu" inputs: "y" outputs: "y" })",
              "node 'n' (Relu): input 'y' is made only by node 'n': nodes must be in topological "
              "order"},
        Fault{R"(nodes { name: "n" op: "Relu" inputs: "x" outputs: "x" })",
              "node 'n' (Relu): output 'x' is defined twice"},
        Fault{R"(nodes { name: "n" op: "Relu" inputs: "x" outputs: "" })",
              "node 'n' (Relu): output without a name"},
        Fault{R"(nodes { op: "Relu" inputs: "x" outputs: "y" })", "node 0 (Relu) has no name"},
        Fault{R"(nodes { name: "n" op: "Relu" inputs: "x" outputs: "y" }
                 nodes { name: "n" op: "Relu" inputs: "y" outputs: "z" })",
              "node 'n' (Relu): an earlier node has the same name"},
        Fault{R"(nodes { name: "n" op: "Embedding" inputs: ["ids", "large"] outputs: "y" })",
              "node 'n' (Embedding): output 'y' is f32[8, 64, 1099511627776]: more than "
              "1099511627776 "
              "elements"}));

TEST(InferTypesTest, RefusesFaultyInputsParametersAndRoles) {
  const struct {
    const char* graph;
    const char* message;
  } faults[] = {
      {R"(inputs { name: "x" dtype: DTYPE_F32 shape: [4, 2] })",
       "input 'x' is f32[4, 2]: the first dimension must be -1, the batch"},
      {R"(inputs { name: "x" dtype: DTYPE_F32 })",
       "input 'x' is f32[]: the first dimension must be -1, the batch"},
      {R"(inputs { name: "x" shape: -1 })", "input 'x' has dtype 0, must be f32 or i32"},
      {R"(inputs { name: "x" dtype: 77 shape: -1 })", "input 'x' has dtype 77, must be f32 or i32"},
      {R"(inputs { name: "x" dtype: DTYPE_F32 shape: [-1, -3] })",
       "input 'x' is f32[8, -3]: every dimension must be at least 1"},
      {R"(inputs { name: "x" dtype: DTYPE_F32 shape: [-1, 1, 1, 1, 1, 1, 1, 1, 1] })",
       "input 'x' has 9 dimensions, more than 8"},
      {R"(parameters { name: "w" shape: [2, 0] })",
       "parameter 'w' is f32[2, 0]: every dimension must be at least 1"},
      {R"(parameters { name: "w" shape: [4294967296, 4294967296] })",
       "parameter 'w' is f32[4294967296, 4294967296]: more than 1099511627776 elements"},
      {R"(parameters { name: "w" shape: 9223372036854775807 })",
       "parameter 'w' is f32[9223372036854775807]: more than 1099511627776 elements"},
      {R"(parameters { name: "w" shape: 2 } parameters { name: "w" shape: 2 })",
       "parameter 'w' is defined twice"},
      {R"(parameters { shape: 2 })", "parameter without a name"},
      {R"(parameters { name: "w" shape: 2 } loss: "w")", "loss 'w' is f32[2], must be f32[]"},
      {R"(loss: "l")", "loss 'l' is not defined"},
      {R"(logits: "l")", "logits 'l' is not defined"},
      {R"(gradients: "g")", "the graph has 1 gradients for 0 parameters"},
      {R"(parameters { name: "w" shape: 2 } parameters { name: "v" shape: 3 } gradients: ["v", "v"])",
       "gradient 'v' is f32[3], must be f32[2]"},
  };
  for (const auto& fault : faults) {
    const absl::Status status = InferTypes(Parse(fault.graph), /*batch=*/8).status();

    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()), fault.message);
  }
}

TEST(InferTypesTest, RefusesABatchBelowOneAndTensorsThatOnlyTheBatchMakesTooLarge) {
  const v1::Graph graph = Parse(R"(inputs { name: "x" dtype: DTYPE_F32 shape: [-1, 1048576] })");

  EXPECT_TRUE(InferTypes(graph, 1).ok());
  EXPECT_EQ(std::string(InferTypes(graph, 0).status().message()),
            "the batch is 0, must be at least 1");
  EXPECT_THAT(std::string(InferTypes(graph, int64_t{1} << 62).status().message()),
              HasSubstr("more than 1099511627776 elements"));
}

TEST(InferTypesTest, WindowsFollowStrideAndPadding) {
  const v1::Graph graph = Parse(absl::StrCat(kTensors, R"(
      nodes { name: "conv" op: "Conv2d" inputs: ["image", "kernel", "bias"] outputs: "conv"
              attributes { key: "stride" value { i: 2 } } attributes { key: "padding" value { i: 1 } } }
      nodes { name: "pool" op: "MaxPool2d" inputs: "image" outputs: "pool"
              attributes { key: "kernel" value { i: 3 } } attributes { key: "stride" value { i: 1 } } }
      nodes { name: "flat" op: "Flatten" inputs: "pool" outputs: "flat" })"));

  const TensorTypes types = InferTypes(graph, 2).value();

  EXPECT_EQ(types.at("conv").ToString(), "f32[2, 6, 4, 3]");
  EXPECT_EQ(types.at("pool").ToString(), "f32[2, 3, 7, 6]");
  EXPECT_EQ(types.at("flat").ToString(), "f32[2, 126]");
  EXPECT_EQ(types.at("flat").elements(), 252);
  EXPECT_EQ(types.at("flat").bytes(), 1008);
}

TEST(InferTypesTest, GradientsOfADifferentiatedModelHaveTheShapesOfItsParameters) {
  for (const char* name : {"linear", "mlp", "lenet", "gpt"}) {
    v1::ModelSpec spec;
    spec.mutable_zoo()->set_name(name);
    const v1::Graph graph = Differentiate(BuildModel(spec).value()).value();

    const absl::StatusOr<TensorTypes> types = InferTypes(graph, 5);

    ASSERT_TRUE(types.ok()) << types.status();
    ASSERT_EQ(graph.gradients_size(), graph.parameters_size());
    for (int p = 0; p < graph.parameters_size(); ++p) {
      EXPECT_EQ(types->at(graph.gradients(p)), types->at(graph.parameters(p).name()));
    }
  }
}

}  // namespace
}  // namespace muster
