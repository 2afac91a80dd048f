#include "lib/graph/shape_inference.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "lib/graph/graph_text.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::shape_inference_test {
namespace {

using ::testing::HasSubstr;

v1::Graph ParseProto(const std::string& text) {
  v1::Graph graph;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &graph)) << text;
  return graph;
}

// Tensors of several ranks, in f32 and i32. The batch is 8.
constexpr absl::string_view kTensors = R"(
    input v f32[-1]
    input x f32[-1, 64, 100]
    input x2 f32[-1, 16, 100]
    input qkv f32[-1, 5, 12]
    input matrix f32[-1, 12]
    input image f32[-1, 4, 9, 8]
    input wide f32[-1, 1, 256, 256]
    input ones f32[-1, 1, 3, 1]
    input ids i32[-1, 64]
    input index i32[-1, 16, 100]
    input labels i32[-1]
    input mask f32[-1, 1, 1, 5]
    input mask3 f32[-1, 3, 1, 5]
    parameter w [512, 128]
    parameter w100 [7, 100]
    parameter square [100, 100]
    parameter c4 [4]
    parameter c6 [6]
    parameter c12 [12]
    parameter c100 [100]
    parameter kernel [6, 4, 5, 3]
    parameter grouped [6, 2, 3, 3]
    parameter upward [4, 6, 3, 2]
    parameter large [1, 1099511627776]
    parameter lstm_w [2, 12, 12]
    parameter lstm_r [2, 12, 3]
    parameter lstm_bias [2, 24]
    parameter gru_w [1, 9, 12]
    parameter gru_r [1, 9, 3]
    parameter gru_bias [1, 18]
    parameter h0 [1, 8, 3]
    parameter row [1, 100]
    parameter column [64, 1]
)";

// `node` is the text after "= " (lib/graph/graph_text.h). `outputs` has the expected types, or the
// error after "node 'a' (Op): ".
struct Case {
  const char* node;
  int output_count;
  const char* outputs;
};

v1::Graph WithNode(const Case& c) {
  std::vector<std::string> outputs;
  for (int i = 0; i < c.output_count; ++i) outputs.push_back(std::string(1, 'a' + i) + "_");
  return ParseGraph(absl::StrCat(kTensors, absl::StrJoin(outputs, ", "), " = ", c.node));
}

class NodeShapeTest : public testing::TestWithParam<Case> {};

TEST_P(NodeShapeTest, FollowsFromInputsAndAttributes) {
  const v1::Graph graph = WithNode(GetParam());

  const absl::StatusOr<TensorTypes> types = InferTypes(graph, /*batch=*/8);

  ASSERT_TRUE(types.ok()) << types.status();
  std::vector<std::string> outputs;
  for (const std::string& name : graph.nodes(0).outputs()) {
    outputs.push_back(types->at(name).ToString());
  }
  EXPECT_EQ(absl::StrJoin(outputs, " "), GetParam().outputs);
}

INSTANTIATE_TEST_SUITE_P(
    MatrixProducts, NodeShapeTest,
    testing::Values(Case{"Linear(x, w100)", 1, "f32[8, 64, 7]"},
                    Case{"MatMul(x, x2) transpose_b=1", 1, "f32[8, 64, 16]"},
                    Case{"MatMul(x, column) transpose_a=1", 1, "f32[8, 100, 1]"},
                    Case{"MatMul(image, image) transpose_a=1", 1, "f32[8, 4, 8, 8]"},
                    Case{"MatMul(row, x) transpose_b=1", 1, "f32[8, 1, 64]"}));

INSTANTIATE_TEST_SUITE_P(
    Images, NodeShapeTest,
    testing::Values(
        Case{"Conv2d(image, kernel, c6)", 1, "f32[8, 6, 5, 6]"},
        Case{"Conv2d(image, kernel) strides=[2, 3] padding=[1, 2, 3, 4]", 1, "f32[8, 6, 5, 4]"},
        Case{"Conv2d(image, grouped) groups=2 dilations=[3, 2]", 1, "f32[8, 6, 3, 4]"},
        Case{"ConvTranspose2d(image, upward, c6)", 1, "f32[8, 6, 11, 9]"},
        Case{"ConvTranspose2d(image, upward) groups=2 strides=[3, 2] padding=[1, 2, 0, 1] "
             "dilations=[2, 3] output_padding=[2, 1]",
             1, "f32[8, 12, 30, 16]"},
        Case{"MaxPool2d(image) kernel=[3, 2]", 2, "f32[8, 4, 3, 4] state"},
        Case{"MaxPool2d(image) kernel=[3, 3] strides=[2, 2] padding=[1, 1, 1, 1]", 2,
             "f32[8, 4, 5, 4] state"},
        Case{"MaxPool2d(image) kernel=[3, 2] strides=[1, 1] padding=[2, 0, 1, 0] dilations=[2, 3]",
             2, "f32[8, 4, 8, 5] state"},
        // Columns: 8 + 0 of kernel 3, stride 2: the fourth window starts inside at 6.
        Case{"AveragePool2d(image) kernel=[3, 3] strides=[2, 2] ceil=1 count_padding=1", 1,
             "f32[8, 4, 4, 4]"},
        // A third window over 9 rows would start at 10, beyond the image and the padding before.
        Case{"AveragePool2d(image) kernel=[2, 2] strides=[5, 5] padding=[0, 0, 1, 1] ceil=1", 1,
             "f32[8, 4, 2, 2]"},
        Case{"GlobalAveragePool2d(image)", 1, "f32[8, 4]"}));

INSTANTIATE_TEST_SUITE_P(
    Norms, NodeShapeTest,
    testing::Values(
        Case{"BatchNorm(image, c4, c4, c4, c4) synchronised=1", 5,
             "f32[8, 4, 9, 8] f32[4] f32[4] f32[4] state"},
        Case{"BatchNorm(matrix, c12, c12, c12)", 5, "f32[8, 12] f32[12] f32[12] f32[12] state"},
        Case{"BatchNormInference(image, c4, c4, c4)", 1, "f32[8, 4, 9, 8]"},
        Case{"LayerNorm(x, c100)", 3, "f32[8, 64, 100] f32[8, 64] f32[8, 64]"},
        Case{"LayerNorm(x, c100, c100) epsilon=0.5", 3, "f32[8, 64, 100] f32[8, 64] f32[8, 64]"},
        Case{"RmsNorm(x, c100)", 2, "f32[8, 64, 100] f32[8, 64]"},
        Case{"GroupNorm(image, c4, c4) groups=2", 3, "f32[8, 4, 9, 8] f32[8, 2] f32[8, 2]"}));

INSTANTIATE_TEST_SUITE_P(Elementwise, NodeShapeTest,
                         testing::Values(Case{"Gelu(x) exact=1", 1, "f32[8, 64, 100]"},
                                         Case{"Add(x, c100)", 1, "f32[8, 64, 100]"},
                                         Case{"Sub(c100, x)", 1, "f32[8, 64, 100]"},
                                         Case{"Mul(column, row)", 1, "f32[64, 100]"},
                                         Case{"Pow(v, v)", 1, "f32[8]"},
                                         Case{"Where(labels, ones, v)", 1, "f32[8, 1, 3, 8]"},
                                         Case{"Cast(x) to=bf16", 1, "bf16[8, 64, 100]"},
                                         Case{"Cast(ids) to=f32", 1, "f32[8, 64]"},
                                         Case{"Cast(v) to=i32", 1, "i32[8]"},
                                         Case{"Dropout(x) rate=0.1 salt=7", 1, "f32[8, 64, 100]"},
                                         Case{"Accumulate(x, x, x)", 1, "f32[8, 64, 100]"}));

INSTANTIATE_TEST_SUITE_P(
    Reductions, NodeShapeTest,
    testing::Values(Case{"ReduceSum(image) axes=[-1, 1]", 1, "f32[8, 1, 9, 1]"},
                    Case{"ReduceMean(image) axes=[2, 3] keep=0", 1, "f32[8, 4]"},
                    Case{"ReduceMax(v) axes=[0] keep=0", 1, "f32[]"},
                    Case{"LogSoftmax(x)", 1, "f32[8, 64, 100]"}));

INSTANTIATE_TEST_SUITE_P(
    Shapes, NodeShapeTest,
    testing::Values(
        Case{"Reshape(x) shape=[0, -1, 50]", 1, "f32[8, 128, 50]"},
        Case{"Reshape(ids) shape=[512]", 1, "i32[512]"}, Case{"Flatten(image)", 1, "f32[8, 288]"},
        Case{"Flatten(image) axis=-1", 1, "f32[288, 8]"}, Case{"Flatten(v) axis=0", 1, "f32[1, 8]"},
        Case{"Squeeze(ones) axes=[-1, 1]", 1, "f32[8, 3]"},
        Case{"Unsqueeze(labels) axes=[2, 0]", 1, "i32[1, 8, 1]"},
        Case{"Transpose(image) permutation=[0, 2, 3, 1]", 1, "f32[8, 9, 8, 4]"},
        Case{"Expand(ones) shape=[0, 5, 0, 2]", 1, "f32[8, 5, 3, 2]"},
        Case{"Expand(row) shape=[2, 3, 1]", 1, "f32[2, 3, 100]"},
        Case{"Expand(c6, ids) shape=[-1, 2, 0]", 1, "f32[8, 2, 6]"},
        Case{"SampleIndex(ids)", 1, "i32[8]"}, Case{"Less(x, c100)", 1, "i32[8, 64, 100]"},
        Case{"Add(ids, ids)", 1, "i32[8, 64]"}, Case{"IsNan(x)", 1, "i32[8, 64, 100]"},
        Case{"Concat(x, x2) axis=1", 1, "f32[8, 80, 100]"},
        Case{"Concat(ids) axis=-1", 1, "i32[8, 64]"},
        Case{"Split(x) axis=-1 sizes=[30, 69, 1]", 3,
             "f32[8, 64, 30] f32[8, 64, 69] f32[8, 64, 1]"},
        Case{"Slice(image) axes=[2, -1] starts=[1, -3] ends=[9223372036854775807, -1]", 1,
             "f32[8, 4, 8, 2]"},
        Case{"Slice(image) axes=[2] starts=[-100] ends=[9] steps=[4]", 1, "f32[8, 4, 3, 8]"},
        Case{"Pad(matrix) padding=[0, 1, 2, 3] value=0.5", 1, "f32[10, 16]"},
        Case{"Gather(x, labels) axis=1", 1, "f32[8, 8, 100]"},
        Case{"Gather(ids, ids)", 1, "i32[8, 64, 64]"},
        Case{"GatherElements(square, ids) axis=1", 1, "f32[8, 64]"},
        Case{"GatherElements(ids, ids)", 1, "i32[8, 64]"},
        Case{"ScatterElements(x, index, x2) axis=1 reduction=add", 1, "f32[8, 64, 100]"},
        Case{"ScatterElements(ids, ids, ids) axis=-1", 1, "i32[8, 64]"},
        Case{"TopK(x) k=7 largest=0", 2, "f32[8, 64, 7] i32[8, 64, 7]"},
        Case{"TopK(v) k=8", 2, "f32[8] i32[8]"}, Case{"Embedding(ids, w100)", 1, "f32[8, 64, 100]"},
        Case{"Embedding(ids, w100) first=3 whole=10", 1, "f32[8, 64, 100]"},
        Case{"AllReduce(x)", 1, "f32[8, 64, 100]"},
        Case{"GradientAllReduce(x)", 1, "f32[8, 64, 100]"},
        Case{"Constant() shape=[2, 3] value=0.5", 1, "f32[2, 3]"},
        Case{"Constant() shape=[] dtype=i32 integers=[7]", 1, "i32[]"},
        Case{"Constant() shape=[3] dtype=bf16 values=[1.0, 2.0, 3.0]", 1, "bf16[3]"},
        Case{"Constant(x) value=0.0", 1, "f32[8, 64, 100]"}));

INSTANTIATE_TEST_SUITE_P(
    AttentionAndRecurrence, NodeShapeTest,
    testing::Values(
        Case{"SelfAttention(qkv) heads=2 causal=1", 2, "f32[8, 5, 4] f32[8, 2, 5]"},
        Case{"SelfAttention(qkv, mask) heads=2", 2, "f32[8, 5, 4] f32[8, 2, 5]"},
        Case{"Attention(x, x2, x2) heads=5 scale=1.0", 2, "f32[8, 64, 100] f32[8, 5, 64]"},
        Case{"Attention(x2, x, x) heads=5 causal=1", 2, "f32[8, 16, 100] f32[8, 5, 16]"},
        Case{"Attention(qkv, qkv, qkv, mask3) heads=3", 2, "f32[8, 5, 12] f32[8, 3, 5]"},
        Case{"Lstm(qkv, lstm_w, lstm_r, lstm_bias)", 4,
             "f32[8, 5, 6] f32[2, 8, 3] f32[2, 8, 3] state"},
        Case{"Gru(qkv, gru_w, gru_r, gru_bias, h0) reverse=1", 3,
             "f32[8, 5, 3] f32[1, 8, 3] state"}));

INSTANTIATE_TEST_SUITE_P(
    Losses, NodeShapeTest,
    testing::Values(Case{"SoftmaxCrossEntropy(x, ids) ignore_index=-100 label_smoothing=0.1", 2,
                         "f32[] f32[8, 64]"},
                    Case{"SigmoidCrossEntropy(x, x) weight=0.5", 1, "f32[]"},
                    Case{"MeanSquaredError(v, v)", 1, "f32[]"},
                    Case{"CorrectCount(matrix, labels)", 1, "f32[]"}));

INSTANTIATE_TEST_SUITE_P(
    Fused, NodeShapeTest,
    testing::Values(Case{"LinearRelu(x, w100)", 1, "f32[8, 64, 7]"},
                    Case{"LinearGelu(x, w100) exact=1", 2, "f32[8, 64, 7] f32[8, 64, 7]"},
                    Case{"LinearGradWeightBias(x, x)", 2, "f32[100, 100] f32[100]"},
                    Case{"LinearGradInputGelu(x, square, x) exact=1", 1, "f32[8, 64, 100]"},
                    Case{"Conv2dRelu(image, kernel, c6)", 1, "f32[8, 6, 5, 6]"},
                    Case{"Conv2dBatchNormRelu(image, kernel, c6, c6, c6)", 1, "f32[8, 6, 5, 6]"},
                    Case{"BatchNormRelu(image, c4, c4, c4)", 5,
                         "f32[8, 4, 9, 8] f32[4] f32[4] f32[4] state"},
                    Case{"AddLayerNorm(x, x, c100)", 4,
                         "f32[8, 64, 100] f32[8, 64] f32[8, 64] f32[8, 64, 100]"}));

class FaultyNodeTest : public testing::TestWithParam<Case> {};

TEST_P(FaultyNodeTest, TheErrorNamesOpShapesAndAttribute) {
  const v1::Graph graph = WithNode(GetParam());

  const absl::Status status = InferTypes(graph, /*batch=*/8).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            absl::StrCat("node 'a_' (", graph.nodes(0).op(), "): ", GetParam().outputs));
}

INSTANTIATE_TEST_SUITE_P(
    Signatures, FaultyNodeTest,
    testing::Values(
        Case{"Linear(x, w)", 1,
             "x is f32[8, 64, 100] but w is f32[512, 128]: inner dimensions 100 and 128 differ"},
        Case{"Linear(x, w100, c6)", 1,
             "w is f32[7, 100] but bias is f32[6]: outer dimensions 7 and 6 differ"},
        Case{"Linear(x, kernel)", 1, "w is f32[6, 4, 5, 3], must be T[outer, inner]"},
        Case{"Linear(ids, w)", 1, "x is i32[8, 64], must be T[..., inner]"},
        Case{"Linear(x)", 1, "has 1 inputs, takes x, w, bias (optional)"},
        Case{"Linear(x, w, c6, c6)", 1, "has 4 inputs, takes x, w, bias (optional)"},
        Case{"Linear(x, w100)", 2, "has 2 outputs, makes y"},
        Case{"Accumulate()", 1, "has 0 inputs, takes x (repeated)"},
        Case{"Accumulate(w, w, c6)", 1,
             "x is f32[512, 128] but x is f32[6]: dimensions [512, 128] and [6] differ"},
        Case{"Constant(x, x) value=0.0", 1, "has 2 inputs, takes like (optional)"},
        Case{"LayerNormGradParameters(x, x, w, w, c100)", 2,
             "has 2 outputs, makes dgain, dbias (optional)"},
        Case{"Split(matrix) axis=1 sizes=[6, 6]", 3, "has 3 outputs, makes 2"},
        Case{"SoftmaxCrossEntropy(x, labels)", 2,
             "logits is f32[8, 64, 100] but target is i32[8]: dimensions [8, 64] and [8] differ"},
        Case{"Sinh(x)", 1, "unknown op"}, Case{"Relu(z)", 1, "input 'z' is not defined"},
        Case{"Relu(a_)", 1,
             "input 'a_' is made only by node 'a_': nodes must be in topological order"}));

INSTANTIATE_TEST_SUITE_P(
    Attributes, FaultyNodeTest,
    testing::Values(
        Case{"MaxPool2d(image)", 2, "attribute 'kernel' is missing"},
        Case{"MaxPool2d(image) kernel=[3]", 2, "attribute 'kernel' has 1 values, must have 2"},
        Case{"MaxPool2d(image) kernel=3", 2, "attribute 'kernel' must be a list of integers"},
        Case{"Conv2d(image, kernel) strides=[1, 0]", 1,
             "attribute 'strides' is 0, must be in [1, 1048576]"},
        Case{"Conv2d(image, kernel) padding=[0, 0, 0, 9223372036854775807]", 1,
             "attribute 'padding' is 9223372036854775807, must be in [0, 1048576]"},
        Case{"Conv2d(image, kernel) groups=0.5", 1, "attribute 'groups' must be an integer"},
        Case{"Relu(x) slope=0.1", 1, "unknown attribute 'slope'"},
        Case{"LayerNorm(x, c100) epsilon=nan", 3, "attribute 'epsilon' is nan"},
        Case{"Dropout(x) rate=1.0 salt=0", 1, "attribute 'rate' is 1, must be in [0, 0.999]"},
        Case{"Dropout(x) rate=0.5 salt=0 first=1 whole=100", 1,
             "x is f32[8, 64, 100]: the part of 100 elements from 1 on is not inside the whole of "
             "100"},
        Case{"Dropout(x) rate=0.5", 1, "attribute 'salt' is missing"},
        Case{"Dropout(x) rate=0.5 salt=2147483648", 1,
             "attribute 'salt' is 2147483648, must be in [0, 2147483647]"},
        Case{"Cast(x) to=f64", 1, "attribute 'to' is 'f64', must be one of f32, bf16, f16, i32"},
        Case{"Cast(x) to=0.5", 1, "attribute 'to' must be a word"},
        Case{"Pad(v) padding=[0, 0] value=1", 1, "attribute 'value' must be a number"}));

INSTANTIATE_TEST_SUITE_P(
    Relations, FaultyNodeTest,
    testing::Values(
        Case{"MatMul(x, x2)", 1,
             "a is f32[8, 64, 100], b is f32[8, 16, 100]: inner dimensions 100 and 16 differ"},
        Case{"MatMul(v, x)", 1,
             "a is f32[8], b is f32[8, 64, 100]: a matrix has at least two dimensions"},
        Case{"MatMul(x, image)", 1,
             "a is f32[8, 64, 100], b is f32[8, 4, 9, 8]: inner dimensions 100 and 9 differ"},
        Case{"MaxPool2d(wide) kernel=[256, 256]", 2,
             "x is f32[8, 1, 256, 256]: a window of 256 x 256 has 65536 positions, at most 65535 "
             "are possible: take the maximum in two steps"},
        Case{"Conv2d(image, grouped)", 1,
             "x is f32[8, 4, 9, 8], w is f32[6, 2, 3, 3]: w has 2 input channels for 4 channels in "
             "1 groups"},
        Case{"Conv2d(image, kernel) dilations=[3, 1]", 1,
             "x is f32[8, 4, 9, 8], w is f32[6, 4, 5, 3]: a kernel of 13 does not fit into the "
             "padded height of 9"},
        Case{"ConvTranspose2d(image, upward) groups=3", 1,
             "x is f32[8, 4, 9, 8], w is f32[4, 6, 3, 2]: 3 groups do not divide 4 channels"},
        Case{"ConvTranspose2d(image, upward) strides=[2, 3] output_padding=[2, 0]", 1,
             "x is f32[8, 4, 9, 8], w is f32[4, 6, 3, 2]: an output padding of 2 is not below the "
             "stride of 2"},
        Case{"ConvTranspose2d(image, upward) padding=[6, 0, 5, 0]", 1,
             "x is f32[8, 4, 9, 8], w is f32[4, 6, 3, 2]: a padding of 11 removes a whole "
             "output height of 11; the limit is 10"},
        Case{"MaxPool2d(image) kernel=[9, 9]", 2,
             "x is f32[8, 4, 9, 8]: a kernel of 9 does not fit into the padded width of 8"},
        Case{"MaxPool2d(image) kernel=[2, 2] padding=[0, 2, 0, 0]", 2,
             "x is f32[8, 4, 9, 8]: a kernel width of 2 would see nothing but padding"},
        // The first windows have two columns: one before the image, one behind it.
        Case{"MaxPool2d(image) kernel=[1, 2] padding=[0, 2, 0, 2] dilations=[1, 10]", 2,
             "x is f32[8, 4, 9, 8]: a kernel width of 2 would see nothing but padding"},
        Case{"AveragePool2d(image) kernel=[1, 2] dilations=[1, 2]", 1,
             "unknown attribute 'dilations'"},
        Case{"GroupNorm(image, c4, c4) groups=3", 3,
             "x is f32[8, 4, 9, 8], gain is f32[4], bias is f32[4]: 3 groups do not divide 4 "
             "channels"},
        Case{"Add(x, c6)", 1,
             "a is f32[8, 64, 100], b is f32[6]: dimensions [8, 64, 100] and [6] do not broadcast"},
        Case{"GatherElements(row, ids) axis=1", 1,
             "x is f32[1, 100], index is i32[8, 64]: dimension 0 of the index is 8, beyond 1"},
        Case{"GatherElements(x, ids) axis=1", 1,
             "x is f32[8, 64, 100], index is i32[8, 64]: an index of 2 dimensions into 3"},
        Case{"ScatterElements(x, index, x) axis=1", 1,
             "index is i32[8, 16, 100] but updates is f32[8, 64, 100]: dimensions [8, 16, 100] and "
             "[8, 64, 100] differ"},
        Case{"TopK(x) k=101", 2, "x is f32[8, 64, 100]: there are no 101 among 100"},
        Case{"ReduceSum(x) axes=[0, 3]", 1,
             "x is f32[8, 64, 100]: there is no dimension 3 among 3"},
        Case{"ReduceSum(x) axes=[2, -1]", 1,
             "x is f32[8, 64, 100]: attribute 'axes' names dimension 2 twice"},
        Case{"Reshape(x) shape=[0, -1, -1]", 1,
             "x is f32[8, 64, 100]: [0, -1, -1] has more than one -1"},
        Case{"Reshape(x) shape=[0, 64, 99]", 1,
             "x is f32[8, 64, 100]: [0, 64, 99] does not hold 51200 elements"},
        Case{"Reshape(v) shape=[-1, 0]", 1,
             "x is f32[8]: [-1, 0] keeps dimension 1, which the input does not have"},
        Case{"Reshape(v) shape=[1099511627776, 1099511627776]", 1,
             "x is f32[8]: [1099511627776, 1099511627776] does not hold 8 elements"},
        Case{"Squeeze(ones) axes=[2]", 1, "x is f32[8, 1, 3, 1]: dimension 2 is 3, not 1"},
        Case{"Transpose(x) permutation=[0, 1, 1]", 1,
             "x is f32[8, 64, 100]: [0, 1, 1] is no permutation of 3 dimensions"},
        Case{"Concat(x, x2) axis=2", 1,
             "x is f32[8, 64, 100], x is f32[8, 16, 100]: [8, 64, 100] and [8, 16, 100] differ in "
             "more than dimension 2"},
        Case{"Split(matrix) axis=1 sizes=[6, 7]", 2,
             "x is f32[8, 12]: sizes [6, 7] do not add up to dimension 1 of 12"},
        Case{"Slice(v) axes=[0] starts=[3] ends=[3]", 1,
             "x is f32[8]: nothing is left of dimension 0"},
        Case{"Slice(v) axes=[0] starts=[3, 4] ends=[3]", 1, "x is f32[8]: has 2 starts for 1 axes"},
        Case{"Expand(c6) shape=[-1, 6]", 1, "x is f32[6]: -1 needs the input 'like'"},
        Case{"Less(x, ids)", 1,
             "a is f32[8, 64, 100] but b is i32[8, 64]: types f32 and i32 differ"},
        Case{"Pow(ids, ids)", 1, "a is i32[8, 64], must be T[...a]"},
        Case{"Pad(matrix) padding=[0, 1]", 1, "x is f32[8, 12]: has 2 paddings for 2 dimensions"},
        Case{"Constant() shape=[2]", 1,
             "needs one of the attributes 'value', 'values', 'integers'"},
        Case{"Constant() shape=[2] values=[1.0]", 1, "[2] has not 1 elements"},
        Case{"Constant() shape=[2] integers=[1, 2]", 1,
             "dtype f32 needs the attribute 'value' or 'values'"},
        Case{"Constant() value=1.0", 1, "needs either attribute 'shape' or the input 'like'"},
        Case{"SelfAttention(qkv) heads=3", 2,
             "qkv is f32[8, 5, 12]: 3 heads do not divide 4 "
             "channels"},
        Case{"SelfAttention(x) heads=1", 2,
             "qkv is f32[8, 64, 100]: the last dimension 100 is not 3 x channels"},
        Case{
            "SelfAttention(qkv, mask3) heads=2", 2,
            "qkv is f32[8, 5, 12], mask is f32[8, 3, 1, 5]: mask head dimension 3 is neither 1 nor "
            "2"},
        Case{"Attention(x, x2, x2) heads=5 causal=1", 2,
             "q is f32[8, 64, 100], k is f32[8, 16, 100], v is f32[8, 16, 100]: causal: the first "
             "of 64 queries see none of 16 keys"},
        Case{"Lstm(qkv, gru_w, gru_r, gru_bias)", 4,
             "x is f32[8, 5, 12], w is f32[1, 9, 12], r is f32[1, 9, 3], bias is f32[1, 18]: gate "
             "dimension 9 is not 12 for 3 hidden"},
        Case{"Lstm(qkv, lstm_w, lstm_r, lstm_bias) reverse=1", 4,
             "x is f32[8, 5, 12], w is f32[2, 12, 12], r is f32[2, 12, 3], bias is f32[2, 24]: two "
             "directions cannot be reversed"},
        Case{"Embedding(ids, large)", 1,
             "output 'a_' is f32[8, 64, 1099511627776]: more than 1099511627776 elements"}));

TEST(InferTypesTest, AllFloatingInputsOfANodeHaveOneType) {
  const v1::Graph graph = ParseGraph(R"(
      input x f32[-1, 4]
      parameter w [3, 4]
      low = Cast(x) to=bf16
      y = Linear(low, w))");

  EXPECT_EQ(std::string(InferTypes(graph, 2).status().message()),
            "node 'y' (Linear): x is bf16[2, 4] but w is f32[3, 4]: types bf16 and f32 differ");
}

TEST(InferTypesTest, BytesFollowTheTypeAndAStateHasNone) {
  const v1::Graph graph = ParseGraph(R"(
      input x f32[-1, 1, 4, 4]
      low = Cast(x) to=f16
      y, state = MaxPool2d(low) kernel=[2, 2])");

  const TensorTypes types = InferTypes(graph, 3).value();

  EXPECT_EQ(types.at("x").bytes(), 192);
  EXPECT_EQ(types.at("low").bytes(), 96);
  EXPECT_EQ(types.at("y").elements(), 12);
  EXPECT_EQ(types.at("state").bytes(), 0);
  EXPECT_EQ(types.at("state").ToString(), "state");
}

TEST(InferTypesTest, RefusesFaultyInputsParametersNamesAndRoles) {
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
      {R"(parameters { name: "w" shape: 2 dtype: DTYPE_I32 })",
       "parameter 'w' has dtype 2, must be f32, bf16 or f16"},
      {R"(parameters { name: "w" shape: 2 statistic_momentum: 0 })",
       "parameter 'w' has a statistic momentum of 0, must be in (0, 1]"},
      {R"(parameters { shape: 2 })", "parameter without a name"},
      {R"(parameters { name: "w" shape: 2 } loss: "w")", "loss 'w' is f32[2], must be f32[]"},
      {R"(loss: "l")", "loss 'l' is not defined"},
      {R"(logits: "l")", "logits 'l' is not defined"},
      {R"(gradients: "g")", "the graph has 1 gradients for 0 parameters"},
      {R"(parameters { name: "w" shape: 2 } gradients: "g")", "gradient 'g' is not defined"},
      {R"(parameters { name: "w" shape: 2 } parameters { name: "v" shape: 3 } gradients: ["v", "v"])",
       "gradient 'v' is f32[3], must be f32[2]"},
      {R"(parameters { name: "w" shape: 2 } nodes { op: "Relu" inputs: "w" outputs: "y" })",
       "node 0 (Relu) has no name"},
      {R"(parameters { name: "w" shape: 2 } nodes { name: "n" op: "Relu" inputs: "w" outputs: "" })",
       "node 'n' (Relu): output without a name"},
      {R"(parameters { name: "w" shape: 2 } nodes { name: "n" op: "Relu" inputs: "w" outputs: "w" })",
       "node 'n' (Relu): output 'w' is defined twice"},
      {R"(parameters { name: "w" shape: 2 }
          nodes { name: "n" op: "Relu" inputs: "w" outputs: "y" }
          nodes { name: "n" op: "Relu" inputs: "y" outputs: "z" })",
       "node 'n' (Relu): an earlier node has the same name"},
      {R"(parameters { name: "w" shape: 2 }
          nodes { name: "n" op: "Relu" inputs: "b" outputs: "a" }
          nodes { name: "m" op: "Relu" inputs: "a" outputs: "b" })",
       "node 'n' (Relu): input 'b' is made only by node 'm': nodes must be in topological order"},
  };
  for (const auto& fault : faults) {
    const absl::Status status = InferTypes(ParseProto(fault.graph), /*batch=*/8).status();

    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()), fault.message);
  }
}

TEST(InferTypesTest, RefusesBatchesThatAreTooSmallOrTooLarge) {
  const v1::Graph graph = ParseGraph("input x f32[-1, 1048576]");

  EXPECT_TRUE(InferTypes(graph, 1).ok());
  EXPECT_EQ(std::string(InferTypes(graph, 0).status().message()),
            "the batch is 0, must be at least 1");
  EXPECT_THAT(std::string(InferTypes(graph, int64_t{1} << 62).status().message()),
              HasSubstr("more than 1099511627776 elements"));
}

}  // namespace
}  // namespace muster::shape_inference_test
