// Compares the reference with PyTorch 1.13 and numpy in double precision. Expected values are sums
// of y[i] cos(i) over the elements of a result, so that every element counts.
#include "lib/engine/reference/reference.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/engine/reference/tensor.h"
#include "lib/engine/verification/sketch.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::reference::reference_test {
namespace {

using ::muster::verification::Sketch;
using ::muster::verification::SketchAttributes;
using ::testing::ElementsAre;

// Returns a tensor with the elements sin(0.7 i + phase).
Tensor Wave(const Shape& shape, double phase) {
  Tensor wave = Zeros(shape);
  for (size_t i = 0; i < wave.values.size(); ++i) wave.values[i] = std::sin(0.7 * i + phase);
  return wave;
}

Tensor Map(Tensor x, double (*f)(double)) {
  for (double& value : x.values) value = f(value);
  return x;
}

Tensor Ids(const Shape& shape, std::vector<double> values) {
  return {.shape = shape, .values = std::move(values), .is_integer = true};
}

double Checksum(const Tensor& y) {
  double sum = 0;
  for (size_t i = 0; i < y.values.size(); ++i)
    sum += y.values[i] * std::cos(static_cast<double>(i));
  return sum;
}

std::vector<Tensor> Apply(const std::string& op, const std::vector<Tensor>& inputs,
                          SketchAttributes attributes = {}, int outputs = 1,
                          const RunArguments& arguments = {}) {
  Sketch sketch;
  Tensors given;
  std::vector<std::string> names;
  for (const Tensor& input : inputs) {
    names.push_back(sketch.Input("x" + std::to_string(names.size()), {}));
    given[names.back()] = input;
  }
  sketch.Add("y", op, names, std::move(attributes), outputs);
  const Tensors tensors = Evaluate(sketch.graph, given, arguments);
  std::vector<Tensor> results;
  for (const std::string& name : sketch.graph.nodes(0).outputs()) {
    results.push_back(tensors.at(name));
  }
  return results;
}

void ExpectTensor(const Tensor& y, const Shape& shape, double checksum) {
  EXPECT_EQ(y.shape, shape);
  EXPECT_NEAR(Checksum(y), checksum, 1e-11);
}

TEST(ReferenceTest, MatrixProductsEqualPyTorch) {
  ExpectTensor(Apply("Linear", {Wave({2, 3, 4}, 0), Wave({5, 4}, 1), Wave({5}, 2)})[0], {2, 3, 5},
               4.252918436046);
  ExpectTensor(Apply("MatMul", {Wave({2, 1, 4, 3}, 0), Wave({5, 2, 4}, 1)},
                     {{"transpose_a", 1}, {"transpose_b", 1}})[0],
               {2, 5, 3, 2}, 0.119420706715);
}

TEST(ReferenceTest, ConvolutionEqualsPyTorch) {
  ExpectTensor(Apply("Conv2d", {Wave({2, 4, 7, 6}, 0), Wave({6, 2, 3, 2}, 1), Wave({6}, 2)},
                     {{"strides", {2, 1}},
                      {"padding", {1, 2, 3, 0}},
                      {"dilations", {1, 2}},
                      {"groups", 2}})[0],
               {2, 6, 5, 6}, -18.654714910429);
}

TEST(ReferenceTest, TransposedConvolutionEqualsPyTorch) {
  ExpectTensor(
      Apply("ConvTranspose2d", {Wave({2, 4, 5, 3}, 0), Wave({4, 3, 3, 2}, 1), Wave({6}, 2)},
            {{"strides", {2, 3}},
             {"padding", {1, 2, 1, 2}},
             {"output_padding", {1, 2}},
             {"dilations", {2, 3}},
             {"groups", 2}})[0],
      {2, 6, 12, 8}, 1.523084921501);
}

TEST(ReferenceTest, PoolingEqualsPyTorch) {
  const Tensor x = Wave({2, 3, 7, 6}, 0);
  SketchAttributes attributes = {
      {"kernel", {3, 2}}, {"strides", {2, 2}}, {"padding", {1, 1, 1, 1}}, {"ceil", 1}};
  ExpectTensor(Apply("MaxPool2d", {x}, attributes, 2)[0], {2, 3, 4, 4}, 1.525500936768);
  ExpectTensor(Apply("MaxPool2d", {x},
                     {{"kernel", {3, 2}},
                      {"strides", {1, 2}},
                      {"padding", {1, 1, 1, 1}},
                      {"dilations", {2, 3}}},
                     2)[0],
               {2, 3, 5, 3}, 2.974084644078);
  ExpectTensor(Apply("AveragePool2d", {x}, attributes)[0], {2, 3, 4, 4}, 0.437855699575);
  attributes.emplace_back("count_padding", 1);
  ExpectTensor(Apply("AveragePool2d", {x}, attributes)[0], {2, 3, 4, 4}, 0.158346513514);
}

TEST(ReferenceTest, NormsEqualPyTorch) {
  const Tensor x = Wave({3, 4, 2, 5}, 0), mean = Wave({4}, 3);
  const Tensor variance = Map(Wave({4}, 4), std::fabs);
  const SketchAttributes epsilon = {{"epsilon", 1e-3}};
  const auto trained =
      Apply("BatchNorm", {x, mean, variance, Wave({4}, 1), Wave({4}, 2)}, epsilon, 5);
  ExpectTensor(trained[0], {3, 4, 2, 5}, -8.289099080972);
  ExpectTensor(trained[3], {4}, -0.038305639996);
  ExpectTensor(
      Apply("BatchNormInference", {x, mean, variance, Wave({4}, 1), Wave({4}, 2)}, epsilon)[0],
      {3, 4, 2, 5}, -11.655751518854);
  ExpectTensor(Apply("LayerNorm", {Wave({3, 2, 5}, 0), Wave({5}, 1), Wave({5}, 2)}, epsilon, 3)[0],
               {3, 2, 5}, 0.767084843426);
  ExpectTensor(Apply("RmsNorm", {Wave({3, 4}, 0), Wave({4}, 1)}, epsilon, 2)[0], {3, 4},
               -1.670559385104);
  ExpectTensor(Apply("GroupNorm", {Wave({2, 6, 3}, 0), Wave({6}, 1), Wave({6}, 2)},
                     {{"epsilon", 1e-3}, {"groups", 3}}, 3)[0],
               {2, 6, 3}, -6.377782502133);
}

TEST(ReferenceTest, ElementwiseOpsEqualPyTorch) {
  ExpectTensor(Apply("Gelu", {Wave({7}, 0)})[0], {7}, -1.109392591450);
  ExpectTensor(Apply("Gelu", {Wave({7}, 0)}, {{"exact", 1}})[0], {7}, -1.109432924340);
  ExpectTensor(Apply("Where", {Ids({2, 1}, {1, 0}), Wave({3, 1, 4}, 0), Wave({2, 1}, 1)})[0],
               {3, 2, 4}, 2.885314112115);
  EXPECT_THAT(Apply("Cast", {{.shape = {3}, .values = {1.9, -1.9, 0}}}, {{"to", "i32"}})[0].values,
              ElementsAre(1, -1, 0));
}

TEST(ReferenceTest, ReductionsEqualPyTorch) {
  const Tensor x = Wave({3, 4, 5}, 0);
  ExpectTensor(Apply("ReduceMax", {x}, {{"axes", {0, -1}}, {"keep", 0}})[0], {4}, 0.130081722853);
  ExpectTensor(Apply("ReduceMean", {x}, {{"axes", {0, 2}}})[0], {1, 4, 1}, -0.046633478975);
  ExpectTensor(Apply("LogSoftmax", {Wave({3, 5}, 0)})[0], {3, 5}, -4.527716184121);
  ExpectTensor(Apply("Softmax", {Wave({3, 5}, 0)})[0], {3, 5}, -0.100047417690);
}

TEST(ReferenceTest, MovesEqualNumpy) {
  ExpectTensor(
      Apply("Slice", {Wave({4, 7, 3}, 0)},
            {{"axes", {0, -2}}, {"starts", {1, -6}}, {"ends", {9, -1}}, {"steps", {2, 3}}})[0],
      {2, 2, 3}, 0.298624721669);
  ExpectTensor(Apply("Pad", {Wave({2, 3}, 0)}, {{"padding", {0, 1, 1, 2}}, {"value", 0.5}})[0],
               {3, 6}, 0.003502047025);
  ExpectTensor(Apply("Gather", {Wave({4, 5, 3}, 0), Ids({2, 2}, {1, -1, 0, 3})}, {{"axis", 1}})[0],
               {4, 2, 2, 3}, -0.021887574035);
  ExpectTensor(Apply("GatherElements", {Wave({4, 5}, 0), Ids({3, 2}, {1, -1, 0, 3, -5, 2})},
                     {{"axis", 1}})[0],
               {3, 2}, 1.409121417287);
  const std::vector<Tensor> scatter = {Wave({4, 5}, 0), Ids({3, 2}, {1, 0, 0, 3, 1, 0}),
                                       Wave({3, 2}, 1)};
  ExpectTensor(Apply("ScatterElements", scatter)[0], {4, 5}, -1.114393660282);
  ExpectTensor(Apply("ScatterElements", scatter, {{"reduction", "add"}})[0], {4, 5},
               0.846385822157);
  ExpectTensor(Apply("Transpose", {Wave({2, 3, 4}, 0)}, {{"permutation", {2, 0, 1}}})[0], {4, 2, 3},
               1.413065718352);
}

TEST(ReferenceTest, TopKEqualsPyTorch) {
  const auto largest = Apply("TopK", {Wave({3, 7}, 0)}, {{"k", 3}}, 2);
  ExpectTensor(largest[0], {3, 3}, 1.284284328799);
  ExpectTensor(largest[1], {3, 3}, 5.776091403111);
  const auto smallest = Apply("TopK", {Wave({3, 7}, 0)}, {{"k", 2}, {"largest", 0}}, 2);
  ExpectTensor(smallest[0], {3, 2}, 0.363185876990);
  ExpectTensor(smallest[1], {3, 2}, 6.687893976476);
}

TEST(ReferenceTest, ShapesFollowTheirAttributes) {
  const Tensor x = Wave({2, 1, 3, 4}, 0);
  EXPECT_EQ(Apply("Reshape", {x}, {{"shape", {0, -1, 2}}})[0].shape, (Shape{2, 6, 2}));
  EXPECT_EQ(Apply("Flatten", {x}, {{"axis", 2}})[0].shape, (Shape{2, 12}));
  EXPECT_EQ(Apply("Squeeze", {x}, {{"axes", {-3}}})[0].shape, (Shape{2, 3, 4}));
  EXPECT_EQ(Apply("Unsqueeze", {x}, {{"axes", {0, -1}}})[0].shape, (Shape{1, 2, 1, 3, 4, 1}));
  EXPECT_EQ(Apply("Expand", {x}, {{"shape", {5, 0, 6, 1, 1}}})[0].shape, (Shape{5, 2, 6, 3, 4}));
  EXPECT_EQ(Apply("Concat", {x, x, x}, {{"axis", -1}})[0].shape, (Shape{2, 1, 3, 12}));
  const auto parts = Apply("Split", {x}, {{"axis", 2}, {"sizes", {1, 2}}}, 2);
  EXPECT_EQ(parts[1].shape, (Shape{2, 1, 2, 4}));
  EXPECT_EQ(parts[1].values[0], x({0, 0, 1, 0}));
}

TEST(ReferenceTest, AttentionEqualsPyTorch) {
  const auto cross =
      Apply("Attention",
            {Wave({2, 3, 4}, 0), Wave({2, 5, 4}, 1), Wave({2, 5, 6}, 2), Wave({2, 1, 3, 5}, 3)},
            {{"heads", 2}, {"causal", 1}, {"scale", 0.4}}, 2);
  ExpectTensor(cross[0], {2, 3, 6}, -0.758126207536);
  ExpectTensor(cross[1], {2, 2, 3}, -0.590071952201);
  const auto self = Apply("SelfAttention", {Wave({2, 3, 12}, 0)}, {{"heads", 2}, {"causal", 1}}, 2);
  ExpectTensor(self[0], {2, 3, 4}, -1.593288282391);
  ExpectTensor(self[1], {2, 2, 3}, 0.436133987255);
}

TEST(ReferenceTest, RecurrencesEqualPyTorch) {
  const auto lstm = Apply("Lstm",
                          {Wave({3, 4, 3}, 0), Wave({2, 8, 3}, 1), Wave({2, 8, 2}, 2),
                           Wave({2, 16}, 3), Wave({2, 3, 2}, 4), Wave({2, 3, 2}, 5)},
                          {}, 4);
  ExpectTensor(lstm[0], {3, 4, 4}, 0.549763139786);
  ExpectTensor(lstm[1], {2, 3, 2}, 0.375793470337);
  ExpectTensor(lstm[2], {2, 3, 2}, 1.170585212304);
  const auto gru = Apply("Gru",
                         {Wave({3, 4, 3}, 0), Wave({2, 6, 3}, 1), Wave({2, 6, 2}, 2),
                          Wave({2, 12}, 3), Wave({2, 3, 2}, 4)},
                         {}, 3);
  ExpectTensor(gru[0], {3, 4, 4}, -1.161027037119);
  ExpectTensor(gru[1], {2, 3, 2}, -0.107186061201);
}

TEST(ReferenceTest, LossesEqualPyTorch) {
  const Tensor target = Ids({3, 2}, {0, 4, -100, 2, 3, -100});
  ExpectTensor(Apply("SoftmaxCrossEntropy", {Wave({3, 2, 5}, 0), target},
                     {{"label_smoothing", 0.1}, {"ignore_index", -100}}, 2)[0],
               {}, 1.931469034765);
  ExpectTensor(Apply("SigmoidCrossEntropy",
                     {Wave({3, 4}, 0), Map(Wave({3, 4}, 1), [](double x) { return x * x; })})[0],
               {}, 0.731179521686);
  ExpectTensor(Apply("MeanSquaredError",
                     {{.shape = {2}, .values = {1, 2}}, {.shape = {2}, .values = {0, 5}}},
                     {{"weight", 0.5}})[0],
               {}, 2.5);
  const Tensor logits{.shape = {3, 3}, .values = {0, 1, 1, 2, 1, 0, 0, 0, 3}};
  EXPECT_EQ(Apply("CorrectCount", {logits, Ids({3}, {1, 0, 1})})[0].values[0], 2);
}

TEST(ReferenceTest, ALossIsAShareOfTheGlobalBatchMean) {
  const Tensor logits = Wave({2, 5}, 0);
  const int64_t counted[] = {0, 8};
  const RunArguments arguments = {.batch = 10, .counted_targets = counted};
  auto loss = [&](const Tensor& target, SketchAttributes attributes, const RunArguments& run) {
    return Apply("SoftmaxCrossEntropy", {logits, target}, attributes, 2, run)[0].values[0];
  };
  const Tensor target = Ids({2}, {1, 4}), ignoring = Ids({2}, {1, -1});
  EXPECT_NEAR(loss(target, {}, arguments), loss(target, {}, {}) * 2 / 10, 1e-15);
  EXPECT_NEAR(loss(ignoring, {{"ignore_index", -1}}, arguments),
              loss(ignoring, {{"ignore_index", -1}}, {}) * 1 / 8, 1e-15);
}

TEST(ReferenceTest, DropoutFollowsThePositionInTheGlobalBatch) {
  const SketchAttributes attributes = {{"rate", 0.25}, {"salt", 3}};
  const Tensor x = Map(Zeros({8, 5}), [](double) { return 3.0; });
  const Tensor whole = Apply("Dropout", {x}, attributes, 1, {.seed = 9, .step = 4})[0];
  const Tensor part = Apply("Dropout", {Map(Zeros({2, 5}), [](double) { return 3.0; })}, attributes,
                            1, {.batch = 8, .first_position = 3, .seed = 9, .step = 4})[0];
  EXPECT_EQ(part.values, std::vector<double>(&whole.values[15], &whole.values[25]));
  EXPECT_THAT(whole.values, testing::Each(testing::AnyOf(0, 4)));
  EXPECT_THAT(whole.values, testing::Contains(0));
}

TEST(ReferenceTest, RanksMeetAtTheirCollectives) {
  std::vector<v1::Graph> graphs;
  std::vector<Tensors> given;
  for (int rank = 0; rank < 3; ++rank) {
    Sketch sketch;
    sketch.Input("x", {2});
    sketch.Add("part", "Linear", {"x", sketch.Parameter("w", {1, 2})});
    sketch.Add("y", "AllReduce", {"part"});
    sketch.Add("z", "GradientAllReduce", {"part"});
    graphs.push_back(sketch.graph);
    given.push_back({{"x", {.shape = {1, 2}, .values = {1, 10}}},
                     {"w", {.shape = {1, 2}, .values = {rank + 1.0, rank * 2.0}}}});
  }
  const std::vector<Tensors> tensors = EvaluateRanks(graphs, given);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(tensors[rank].at("y").values, ElementsAre(1 + 22 + 43));
    EXPECT_THAT(tensors[rank].at("z").values, ElementsAre(1 + 21 * rank));
  }
}

// Each rank has some of the rows of a table that is also the classifier, and some of the columns
// that are dropped.
TEST(ReferenceTest, RanksOfATableGiveWhatTheWholeGives) {
  const auto graph_of = [](int64_t first, int64_t rows, bool is_part) {
    Sketch sketch;
    const std::string x = sketch.Ids("x", {2}), target = sketch.Ids("target", {2});
    const std::string table = sketch.Parameter("table", {rows, 3});
    SketchAttributes part, loss = {{"label_smoothing", 0.25}};
    if (is_part) {
      part = {{"first", static_cast<int>(first)}, {"whole", 7}};
      loss.insert(loss.end(), part.begin(), part.end());
      loss.push_back({"ranks", 2});
    }
    sketch.Add("rows", "Embedding", {x, table}, part);
    sketch.Add("y", is_part ? "AllReduce" : "Relu", {"rows"});
    SketchAttributes dropout = {{"rate", 0.5}, {"salt", 3}};
    dropout.insert(dropout.end(), part.begin(), part.end());
    sketch.Add("logits", "Linear", {"y", table});
    sketch.Add("dropped", "Dropout", {"logits"}, dropout);
    sketch.Loss("SoftmaxCrossEntropy", "dropped", target, loss);
    return sketch.graph;
  };
  Tensor table = Map(Wave({7, 3}, 1), [](double x) { return std::abs(x); });
  const Tensors inputs = {{"x", Ids({2, 2}, {6, 0, 3, 2})}, {"target", Ids({2, 2}, {5, 2, 0, 3})}};
  Tensors given = inputs;
  given["table"] = table;
  const v1::Graph whole = graph_of(0, 7, false);
  const Tensors expected = Evaluate(whole, given);

  std::vector<v1::Graph> graphs = {graph_of(0, 3, true), graph_of(3, 4, true)};
  std::vector<Tensors> parts = {inputs, inputs};
  parts[0]["table"] = {.shape = {3, 3}, .values = {table.values.begin(), table.values.begin() + 9}};
  parts[1]["table"] = {.shape = {4, 3}, .values = {table.values.begin() + 9, table.values.end()}};
  const std::vector<Tensors> tensors = EvaluateRanks(graphs, parts);
  for (const Tensors& rank : tensors) {
    EXPECT_EQ(rank.at("y").values, expected.at("y").values);
    EXPECT_NEAR(rank.at(whole.loss()).values[0], expected.at(whole.loss()).values[0], 1e-12);
  }
  for (int64_t row = 0; row < 4; ++row) {
    EXPECT_EQ(tensors[1].at("dropped").values[row * 4 + 2],
              expected.at("dropped").values[row * 7 + 5]);
  }
}

}  // namespace
}  // namespace muster::reference::reference_test
