#include "lib/graph/lowering/lowering.h"

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/graph/attributes.h"
#include "lib/graph/blocks.h"
#include "lib/graph/graph_text.h"
#include "lib/graph/shape_inference.h"
#include "lib/graph/zoo/zoo.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::lowering_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

v1::Graph Training(const v1::Graph& forward, const LoweringOptions& options) {
  const absl::StatusOr<v1::Graph> graph = TrainingGraph(forward, options);
  EXPECT_TRUE(graph.ok()) << graph.status();
  EXPECT_TRUE(InferTypes(*graph, 3).ok()) << InferTypes(*graph, 3).status();
  return *graph;
}

v1::Graph Inference(const v1::Graph& forward, const LoweringOptions& options) {
  const absl::StatusOr<v1::Graph> graph = InferenceGraph(forward, options);
  EXPECT_TRUE(graph.ok()) << graph.status();
  EXPECT_TRUE(InferTypes(*graph, 3).ok()) << InferTypes(*graph, 3).status();
  return *graph;
}

// An image model with all parts that differ between training and evaluation.
constexpr absl::string_view kImage = R"(
    input image f32[-1, 3, 8, 8]
    input target i32[-1]
    parameter w [4, 3, 3, 3]
    statistic mean [4]
    statistic variance [4]
    parameter bias [4]
    parameter gain [4]
    parameter fc [5, 4]
    c = Conv2d(image, w)
    n, m, r, v, state = BatchNorm(c, mean, variance, bias, gain) synchronised=1
    a = Relu(n)
    p = GlobalAveragePool2d(a)
    d = Dropout(p) rate=0.5 salt=3
    logits = Linear(d, fc)
    kept = Dropout(logits) rate=0.1 salt=4
    loss, lse = SoftmaxCrossEntropy(kept, target)
    correct = CorrectCount(kept, target)
    loss loss
    logits kept
    correct correct)";

TEST(InferenceGraphTest, HasNoDropoutAndNormsWithRunningValues) {
  const v1::Graph graph = Inference(ParseGraph(kImage), {.fuse = false});

  EXPECT_THAT(
      NodeLines(graph),
      ElementsAre("c = Conv2d(image, w)", "n = BatchNormInference(c, mean, variance, bias, gain)",
                  "a = Relu(n)", "p = GlobalAveragePool2d(a)", "logits = Linear(p, fc)",
                  "loss, lse = SoftmaxCrossEntropy(logits, target)",
                  "correct = CorrectCount(logits, target)"));
  EXPECT_EQ(graph.logits(), "logits");
  EXPECT_THAT(graph.gradients(), IsEmpty());
}

TEST(InferenceGraphTest, FusesConvolutionNormAndActivation) {
  const v1::Graph graph = Inference(ParseGraph(kImage), {});

  EXPECT_EQ(NodeLines(graph)[0], "a = Conv2dBatchNormRelu(image, w, mean, variance, bias, gain)");
}

TEST(TrainingGraphTest, MayHaveNoOutputsButTheLoss) {
  const v1::Graph whole = Training(ParseGraph(kImage), {}),
                  graph = Training(ParseGraph(kImage), {.only_loss = true});
  EXPECT_EQ(whole.logits(), "kept");
  EXPECT_EQ(graph.logits(), "");
  EXPECT_EQ(graph.correct(), "");
  EXPECT_EQ(graph.loss(), "loss");
  EXPECT_THAT(NodeLines(whole), testing::Contains("correct = CorrectCount(kept, target)"));
  std::vector<std::string> lines = NodeLines(whole);
  std::erase(lines, "correct = CorrectCount(kept, target)");
  EXPECT_EQ(NodeLines(graph), lines);
}

TEST(TrainingGraphTest, HasNoUnusedNodes) {
  const v1::Graph graph = Training(ParseGraph(R"(
      input x f32[-1, 4]
      input target f32[-1, 4]
      parameter w [4, 4]
      y = Linear(x, w)
      idle = Relu(y)
      idler = Exp(idle)
      loss = MeanSquaredError(y, target)
      loss loss)"),
                                   {});

  EXPECT_THAT(NodeLines(graph), Not(Contains(HasSubstr("idle"))));
}

// ---------------------------------------------------------------- ranks

constexpr absl::string_view kPair = R"(
    input x f32[-1, 3]
    input target f32[-1, 3]
    parameter shift [3]
    parameter w [8, 3]
    parameter b [8]
    parameter v [3, 8]
    a = Add(x, shift)
    up = Linear(a, w, b)
    h = Gelu(up)
    y = Linear(h, v)
    loss = MeanSquaredError(y, target)
    loss loss)";

// Returns the nodes behind the gradient of the loss.
std::vector<std::string> Backward(absl::string_view text, const LoweringOptions& options) {
  const std::vector<std::string> lines = NodeLines(Training(ParseGraph(text), options));
  const auto loss = std::ranges::find_if(
      lines, [](const std::string& line) { return absl::StartsWith(line, "loss = "); });
  return {loss + 2, lines.end()};
}

constexpr TensorParallel kRank = {.degree = 2, .rank = 1};

TEST(PutSumsFirstTest, TheGradientOfALayersInputIsSummedBeforeItsOtherGradients) {
  EXPECT_THAT(
      Backward(kPair, {.tensor_parallel = kRank}),
      ElementsAre("d(v) = LinearGradWeight(d(y), h)", "d(up) = LinearGradInputGelu(d(y), v, up)",
                  "d(a shared) = LinearGradInput(d(up), w)", "d(a) = AllReduce(d(a shared))",
                  "d(w), d(b) = LinearGradWeightBias(d(up), a shared)",
                  "d(shift) = AddGrad(d(a), shift)"));
  EXPECT_THAT(
      Backward(kPair, {.fuse = false, .tensor_parallel = kRank}),
      ElementsAre("d(v) = LinearGradWeight(d(y), h)", "d(h) = LinearGradInput(d(y), v)",
                  "d(up) = GeluGrad(d(h), up)", "d(a shared) = LinearGradInput(d(up), w)",
                  "d(a) = AllReduce(d(a shared))", "d(b) = LinearGradBias(d(up))",
                  "d(w) = LinearGradWeight(d(up), a shared)", "d(shift) = AddGrad(d(a), shift)"));
}

TEST(PutSumsFirstTest, LayersWithTheSameInputHaveOneSum) {
  EXPECT_THAT(
      Backward(R"(
          input x f32[-1, 5, 4]
          input target f32[-1, 5, 4]
          parameter shift [4]
          parameter wq [4, 4]
          parameter wk [4, 4]
          parameter wv [4, 4]
          parameter wo [4, 4]
          a = Add(x, shift)
          q = Linear(a, wq)
          k = Linear(a, wk)
          v = Linear(a, wv)
          z, lse = Attention(q, k, v) heads=2
          y = Linear(z, wo)
          loss = MeanSquaredError(y, target)
          loss loss)",
               {.tensor_parallel = kRank}),
      ElementsAre("d(wo) = LinearGradWeight(d(y), z)", "d(z) = LinearGradInput(d(y), wo)",
                  "d(q), d(k), d(v) = AttentionGrad(d(z), q, k, v, z, lse)",
                  "d(a shared) from v = LinearGradInput(d(v), wv)",
                  "d(a shared) from k = LinearGradInput(d(k), wk)",
                  "d(a shared) from q = LinearGradInput(d(q), wq)",
                  "d(a shared) = Accumulate(d(a shared) from q, d(a shared) from k, "
                  "d(a shared) from v)",
                  "d(a) = AllReduce(d(a shared))", "d(wv) = LinearGradWeight(d(v), a shared)",
                  "d(wk) = LinearGradWeight(d(k), a shared)",
                  "d(wq) = LinearGradWeight(d(q), a shared)", "d(shift) = AddGrad(d(a), shift)"));
}

TEST(PutSumsFirstTest, AWholeGraphKeepsItsOrder) {
  EXPECT_THAT(
      Backward(kPair, {}),
      ElementsAre("d(v) = LinearGradWeight(d(y), h)", "d(up) = LinearGradInputGelu(d(y), v, up)",
                  "d(w), d(b) = LinearGradWeightBias(d(up), a)", "d(a) = LinearGradInput(d(up), w)",
                  "d(shift) = AddGrad(d(a), shift)"));
}

// ---------------------------------------------------------------- precision

TEST(PrecisionTest, ParametersAndTheirDependentsAreLowWhileStatisticsAndLossesStayF32) {
  const v1::Graph graph =
      Training(ParseGraph(kImage), {.precision = v1::BF16, .recompute = false, .fuse = false});
  const TensorTypes types = InferTypes(graph, 2).value();

  EXPECT_EQ(NodeLines(graph)[0], "image as bf16 = Cast(image)");
  for (const char* name : {"w", "bias", "fc", "c", "n", "a", "p", "kept", "d(w)", "d(a)"}) {
    EXPECT_EQ(types.at(name).dtype, v1::DTYPE_BF16) << name;
  }
  for (const char* name : {"image", "mean", "m", "v", "d(mean)", "loss", "lse", "correct"}) {
    EXPECT_EQ(types.at(name).dtype, v1::DTYPE_F32) << name;
  }
}

TEST(PrecisionTest, MasksAndTargetsStayF32AndConstantsFollowTheirReaders) {
  const v1::Graph graph = Training(ParseGraph(R"(
      input x f32[-1, 5, 4]
      input visible i32[-1, 5]
      input target f32[-1, 5, 4]
      parameter w [12, 4]
      one = Constant() shape=[] value=1.0
      far = Constant() shape=[] value=-1000000.0
      seen = Cast(visible) to=f32
      hidden = Sub(one, seen)
      penalty = Mul(hidden, far)
      mask = Unsqueeze(penalty) axes=[1, 2]
      qkv = Linear(x, w)
      scaled = Mul(qkv, one)
      y, lse = SelfAttention(scaled, mask) heads=2
      loss = SigmoidCrossEntropy(y, target)
      loss loss)"),
                                   {.precision = v1::FP16, .recompute = false, .fuse = false});
  const TensorTypes types = InferTypes(graph, 2).value();

  EXPECT_EQ(types.at("penalty").dtype, v1::DTYPE_F32);
  EXPECT_EQ(types.at("scaled").dtype, v1::DTYPE_F16);
  EXPECT_THAT(NodeLines(graph), Contains("scaled = Mul(qkv, one as f16)"));
  EXPECT_THAT(NodeLines(graph), Contains("one as f16 = Constant()"));
  EXPECT_THAT(NodeLines(graph), Contains("hidden = Sub(one, seen)"));
  EXPECT_THAT(NodeLines(graph), Contains("y, lse = SelfAttention(scaled, mask)"));
  EXPECT_THAT(NodeLines(graph), Contains("loss = SigmoidCrossEntropy(y, target)"));
}

TEST(PrecisionTest, AConstantTooLargeForTheTypeBecomesTheLargestNumber) {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  for (const auto& [precision, most] :
       {std::pair(v1::FP16, 65504.0), std::pair(v1::BF16, 0x1.fep127)}) {
    v1::Graph forward = ParseGraph(R"(
      input x f32[-1, 4]
      input target f32[-1, 4]
      parameter w [4, 4]
      lowest = Constant() shape=[] value=1.0
      both = Constant() shape=[4] values=[1.0, 2.0, 3.0, 4.0]
      product = Linear(x, w)
      hidden = Add(product, lowest)
      y = Mul(hidden, both)
      loss = SigmoidCrossEntropy(y, target)
      loss loss)");
    (*forward.mutable_nodes(0)->mutable_attributes())["value"].set_f(kLowest);
    auto& values = *(*forward.mutable_nodes(1)->mutable_attributes())["values"].mutable_numbers();
    values.set_values(0, -kLowest);
    const v1::Graph graph =
        Training(forward, {.precision = precision, .recompute = false, .fuse = false});
    int seen = 0;
    for (const v1::Node& node : graph.nodes()) {
      if (node.outputs(0).starts_with("lowest as ")) {
        ++seen;
        EXPECT_EQ(NumberAttribute(node, "value"), -most);
      } else if (node.outputs(0).starts_with("both as ")) {
        ++seen;
        EXPECT_THAT(NumbersAttribute(node, "values"), ElementsAre(most, 2.0, 3.0, 4.0));
      }
    }
    EXPECT_EQ(seen, 2);
  }
}

// A tensor computed from data and a constant beyond the type's range becomes finite too. Tensors
// computed from data alone are not clipped.
TEST(PrecisionTest, AMaskComputedFromALargeConstantIsClipped) {
  for (const auto& [precision, type, far] :
       {std::tuple(v1::FP16, "f16", -1e9f),
        std::tuple(v1::BF16, "bf16", std::numeric_limits<float>::lowest())}) {
    v1::Graph forward = ParseGraph(R"(
      input x f32[-1, 4]
      input visible i32[-1, 4]
      input target f32[-1, 4]
      parameter w [4, 4]
      far = Constant() shape=[] value=1.0
      near = Constant() shape=[] value=-10000.0
      none = Constant() shape=[] value=0.0
      mask = Where(visible, none, far)
      other = Where(visible, none, near)
      product = Linear(x, w)
      hidden = Add(product, mask)
      y = Add(hidden, other)
      loss = SigmoidCrossEntropy(y, target)
      loss loss)");
    (*forward.mutable_nodes(0)->mutable_attributes())["value"].set_f(far);
    const v1::Graph graph =
        Training(forward, {.precision = precision, .recompute = false, .fuse = false});
    const std::string within = absl::StrCat("mask within ", type);
    EXPECT_THAT(NodeLines(graph), Contains(within + " = Clip(mask)"));
    EXPECT_THAT(NodeLines(graph),
                Contains(absl::StrCat("mask as ", type, " = Cast(", within, ")")));
    EXPECT_THAT(NodeLines(graph), Contains(absl::StrCat("other as ", type, " = Cast(other)")));
    EXPECT_THAT(NodeLines(graph), Contains(absl::StrCat("x as ", type, " = Cast(x)")));
  }
}

TEST(PrecisionTest, AShapeOnlyInputMayHaveAnyType) {
  const v1::Graph graph = Training(ParseGraph(R"(
      input x f32[-1, 4]
      input target f32[-1, 4]
      parameter w [4, 4]
      zeros = Constant() shape=[1, 4] value=0.0
      y = Linear(x, w)
      rows = Expand(zeros, y) shape=[-1, 0]
      sums = Add(x, rows)
      loss = MeanSquaredError(y, target)
      loss loss
      logits sums)"),
                                   {.precision = v1::FP16, .recompute = false, .fuse = false});

  EXPECT_THAT(NodeLines(graph), Contains("rows = Expand(zeros, y)"));
  EXPECT_THAT(NodeLines(graph), Contains("sums = Add(x, rows)"));
  EXPECT_EQ(InferTypes(graph, 3)->at("rows").dtype, v1::DTYPE_F32);
}

TEST(PrecisionTest, AnInputIsCastOnceForAllItsReaders) {
  const v1::Graph graph = Training(ParseGraph(R"(
      input x f32[-1, 4]
      input target f32[-1, 4]
      parameter v [4, 4]
      parameter w [4, 4]
      a = Linear(x, v)
      b = Linear(x, w)
      y = Add(a, b)
      loss = MeanSquaredError(y, target)
      loss loss)"),
                                   {.precision = v1::BF16, .recompute = false, .fuse = false});

  const std::vector<std::string> lines = NodeLines(graph);
  EXPECT_EQ(std::ranges::count(lines, "x as bf16 = Cast(x)"), 1);
}

TEST(PrecisionTest, F32AndTf32GraphsAreTheSame) {
  EXPECT_EQ(Training(ParseGraph(kImage), {.precision = v1::TF32}).DebugString(),
            Training(ParseGraph(kImage), {.precision = v1::FP32}).DebugString());
}

// ---------------------------------------------------------------- recomputation

TEST(BlocksTest, AreNamedByTheFirstNumberAndIncludeNodesWithoutOne) {
  const v1::Graph graph = ParseGraph(R"(
      input x f32[-1, 4]
      a @embed = Relu(x)
      b @layer1.0.conv1 = Relu(a)
      c @layer1.0.conv2 = Relu(b)
      d @relu = Relu(c)
      e @layer1.0.add = Relu(d)
      f @layer1.1.conv1 = Relu(e)
      g @layer1.1.conv2 = Relu(f)
      h @layer1.1.relu = Relu(g)
      i @/layer2/layer2.0/conv1 = Relu(h)
      j @/layer2/layer2.0/relu = Relu(i)
      k @/layer2/layer2.0/down = Relu(j)
      l @head = Relu(k)
      m @loss = Relu(l)
      n @more = Relu(m)
      o @end = Relu(n)
      p @last = Relu(o))");

  EXPECT_THAT(FindBlocks(graph), ElementsAre(0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3));
}

TEST(BlocksTest, AreRunsOfTheSquareRootIfNamesDoNotHelp) {
  for (const char* prefix : {"plain", "features.", "x."}) {
    v1::Graph graph;
    for (int i = 0; i < 9; ++i) graph.add_nodes()->set_name(absl::StrCat(prefix, i));

    EXPECT_THAT(FindBlocks(graph), ElementsAre(0, 0, 0, 1, 1, 1, 2, 2, 2)) << prefix;
  }
}

// A graph of three blocks with five nodes each, from y of the previous block to its own y.
std::string Blocks() {
  std::string text = R"(
      input y f32[-1, 4]
      input target f32[-1, 4]
      )";
  for (int block : {0, 1, 2}) {
    absl::StrAppend(&text, absl::StrReplaceAll(R"(
        parameter w# [4, 4]
        parameter u# [4, 4]
        parameter bias# [4]
        statistic mean# [4]
        statistic variance# [4]
        f# @blocks.#.fc = Linear(y<, w#)
        n#, m#, r#, v#, s# @blocks.#.norm = BatchNorm(f#, mean#, variance#, bias#)
        t# @blocks.#.tanh = Tanh(n#)
        d# @blocks.#.drop = Dropout(t#) rate=0.5 salt=#7
        y# @blocks.#.out = Linear(d#, u#)
        )",
                                               {{"#", absl::StrCat(block)},
                                                {"<", block == 0 ? "" : absl::StrCat(block - 1)}}));
  }
  return absl::StrCat(text, "loss = MeanSquaredError(y2, target)\n loss loss");
}

TEST(RecomputeTest, RepeatsABlockBeforeItsBackwardFromTensorsThatCrossBlocks) {
  const std::vector<std::string> lines = NodeLines(
      Training(ParseGraph(Blocks()), {.precision = v1::FP32, .recompute = true, .fuse = false}));

  const auto begin = std::ranges::find(lines, "f1 again = Linear(y0, w1)");
  ASSERT_GE(lines.end() - begin, 12);
  EXPECT_THAT(
      std::vector<std::string>(begin - 1, begin + 11),
      ElementsAre("d(y1) = LinearGradInput(d(f2), w2)", "f1 again = Linear(y0, w1)",
                  "n1 again, m1 again, r1 again, v1 again, s1 again = "
                  "BatchNorm(f1 again, mean1, variance1, bias1)",
                  "t1 again = Tanh(n1 again)", "d1 again = Dropout(t1 again)",
                  "d(u1) = LinearGradWeight(d(y1), d1 again)", "d(d1) = LinearGradInput(d(y1), u1)",
                  "d(t1) = DropoutGrad(d(d1))", "d(n1) = TanhGrad(d(t1), t1 again)",
                  "d(mean1) = StatisticGrad(m1)", "d(variance1) = StatisticGrad(v1)",
                  "d(f1), d(bias1) = "
                  "BatchNormGrad(d(n1), f1 again, m1 again, r1 again, s1 again, bias1)"));
}

TEST(RecomputeTest, TheLastBlockAndUnreadNodesAreNotRepeated) {
  const std::vector<std::string> lines =
      NodeLines(Training(ParseGraph(Blocks()), {.recompute = true}));

  EXPECT_THAT(lines, Not(Contains(StartsWith("y1 again"))));
  EXPECT_THAT(lines, Not(Contains(StartsWith("f2 again"))));
}

TEST(RecomputeTest, ARepeatDrawsTheSameRandomNumbers) {
  const v1::Graph graph = Training(ParseGraph(Blocks()), {.recompute = true});

  const auto repeat = std::ranges::find(graph.nodes(), "blocks.1.drop/Recompute", &v1::Node::name);
  ASSERT_NE(repeat, graph.nodes().end());
  EXPECT_EQ(repeat->attributes().at("salt").i(), 17);
}

// Counts the forward tensors that are inputs of the nodes behind the loss, even if only for their
// shape.
int ForwardTensorsReadInBackward(const v1::Graph& graph) {
  absl::flat_hash_set<std::string> forward;
  absl::flat_hash_set<std::string> read;
  bool is_forward = true;
  for (const v1::Node& node : graph.nodes()) {
    for (const std::string& input : node.inputs()) {
      if (!is_forward && forward.contains(input)) read.insert(input);
    }
    if (is_forward) forward.insert(node.outputs().begin(), node.outputs().end());
    if (node.outputs(0) == graph.loss()) is_forward = false;
  }
  return read.size();
}

TEST(RecomputeTest, FewerTensorsAreKeptForBackward) {
  const v1::Graph forward = ParseGraph(Blocks());

  EXPECT_LT(ForwardTensorsReadInBackward(Training(forward, {.recompute = true})),
            ForwardTensorsReadInBackward(Training(forward, {.recompute = false})) - 4);
}

// ---------------------------------------------------------------- whole models

v1::Graph Model(const std::string& name) {
  v1::ModelSpec spec;
  spec.mutable_zoo()->set_name(name);
  return BuildModel(spec).value();
}

class ZooLoweringTest : public testing::TestWithParam<const char*> {};

TEST_P(ZooLoweringTest, EveryModelLowersInEveryWay) {
  const v1::Graph forward = Model(GetParam());
  for (v1::Precision precision : {v1::FP32, v1::BF16, v1::FP16}) {
    for (bool recompute : {false, true}) {
      for (bool fuse : {false, true}) {
        const v1::Graph graph =
            Training(forward, {.precision = precision, .recompute = recompute, .fuse = fuse});
        const TensorTypes types = InferTypes(graph, 3).value();
        ASSERT_EQ(graph.gradients_size(), forward.parameters_size());
        for (int p = 0; p < graph.parameters_size(); ++p) {
          EXPECT_EQ(graph.parameters(p).name(), forward.parameters(p).name());
          EXPECT_EQ(types.at(graph.gradients(p)), types.at(graph.parameters(p).name()));
        }
      }
    }
    Inference(forward, {.precision = precision});
  }
}

TEST_P(ZooLoweringTest, EveryGradientIsASeparateTensor) {
  const v1::Graph graph = Training(Model(GetParam()), {});

  EXPECT_EQ(
      absl::flat_hash_set<std::string>(graph.gradients().begin(), graph.gradients().end()).size(),
      graph.parameters_size());
}

INSTANTIATE_TEST_SUITE_P(Zoo, ZooLoweringTest,
                         testing::Values("linear", "mlp", "lenet", "vgg16", "resnet50", "resnet101",
                                         "inception_v3", "lstm_lm", "gnmt", "transformer", "bert",
                                         "gpt2", "ncf"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace muster::lowering_test
