#include "lib/graph/onnx/onnx_import.h"

#include <sys/stat.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/graph/autodiff.h"
#include "lib/graph/onnx/onnx_file.h"
#include "lib/graph/onnx/onnx_model_builder.h"
#include "lib/graph/shape_inference.h"
#include "lib/status/status.h"
#include "proto/third_party/onnx/onnx.pb.h"

namespace muster::onnx_import_test {
namespace {

using onnx::AttributeProto;
using onnx::TensorProto;

class Model : public OnnxModelBuilder {
 public:
  using OnnxModelBuilder::OnnxModelBuilder;

  absl::StatusOr<ImportedModel> Import(v1::OnnxModel model = {}) {
    model.set_path(Write(testing::UnitTest::GetInstance()->current_test_info()->name() +
                         std::string(".onnx")));
    return ImportOnnx(model);
  }
  absl::StatusOr<ImportedModel> Import(const std::string& loss) {
    v1::OnnxModel model;
    model.set_loss(loss);
    return Import(std::move(model));
  }
};

Model Linear() {
  Model model;
  model.Input("x", {0, 3}).Weight("w", {2, 3}).Weight("b", {2}).Output("y");
  model.Node("Gemm", {"x", "w", "b"}, {"y"}, {{"transB", {1}}});
  return model;
}

std::vector<int64_t> ShapeOf(const v1::Graph& graph, const std::string& tensor, int64_t batch) {
  const auto types = InferTypes(graph, batch);
  EXPECT_TRUE(types.ok()) << types.status();
  return types.ok() && types->contains(tensor) ? types->at(tensor).shape : std::vector<int64_t>{-1};
}

TEST(OnnxImportTest, InitialisersBecomeParametersWithTheirValues) {
  const auto model = Linear().Import();
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->graph.parameters_size(), 2);
  EXPECT_EQ(model->graph.parameters(0).name(), "w");
  EXPECT_TRUE(model->graph.parameters(0).weight_decay());
  EXPECT_FALSE(model->graph.parameters(1).weight_decay());
  EXPECT_EQ(model->initial_values[1], (std::vector<float>{0.25f, 0.5f}));
  EXPECT_EQ(model->graph.nodes(0).op(), "Linear");
  EXPECT_EQ(model->graph.logits(), "y");
  EXPECT_FALSE(model->graph.correct().empty());
  EXPECT_EQ(model->graph.inputs(1).name(), "target");
  EXPECT_TRUE(Differentiate(model->graph).ok());
}

TEST(OnnxImportTest, TheSignatureNamesInputsAndOutputsBeforeALossIsChosen) {
  Model model = Linear();
  model.Node("Relu", {"y"}, {"r"})
      .Output("r")
      .Node("ReduceMean", {"y"}, {"mean"}, {{"keepdims", {0}}});
  model.Output("mean")
      .Integers("rows", {-1})
      .Node("Reshape", {"y", "rows"}, {"flat"})
      .Output("flat");
  const auto signature = ReadOnnxSignature(model.Write("signature.onnx"));
  ASSERT_TRUE(signature.ok()) << signature.status();
  ASSERT_EQ(signature->inputs.size(), 1);
  EXPECT_EQ(signature->inputs[0].name(), "x");
  std::vector<std::string> outputs;
  for (const OnnxOutput& output : signature->outputs) {
    outputs.push_back(absl::StrCat(output.name, " ", output.ToString()));
  }
  EXPECT_THAT(outputs,
              testing::ElementsAre("y f32[B, 2]", "r f32[B, 2]", "mean f32[]", "flat f32[2B]"));
  EXPECT_FALSE(ReadOnnxSignature("/no/such/file.onnx").ok());
}

TEST(OnnxImportTest, OtherLossesTakeFloatingLabels) {
  const auto model = Linear().Import("mean_squared_error");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->graph.inputs(1).dtype(), v1::DTYPE_F32);
  EXPECT_EQ(ShapeOf(model->graph, "target", 4), (std::vector<int64_t>{4, 2}));
  EXPECT_TRUE(absl::StrContains(Linear().Import("hinge").status().message(), "'hinge' is unknown"));
}

TEST(OnnxImportTest, AllFaultsAreNamedAtOnceGroupedByCause) {
  Model model = Linear();
  model.Node("Unique", {"x"}, {"u1"}).Node("Unique", {"x"}, {"u2"}).Node("Relu", {"u2"}, {"r"});
  model.Node("Reshape", {"x", "x"}, {"s"}).Node("Loop", {"x"}, {"l"});
  const absl::Status status = model.Import().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), "MODEL_INVALID");
  for (const char* part :
       {"4 nodes cannot be imported: ",
        "2 Unique (first node 'the Unique') is an operator that is not supported",
        "Loop (node 'the Loop') is an operator that is not supported",
        "Reshape (node 'the Reshape') has a shape that is computed while it runs",
        "1 that read them were not looked at"}) {
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << part << " in " << status;
  }
}

TEST(OnnxImportTest, TheErrorNamesTheFixedBatchOfAFile) {
  Model model = Linear();
  model.proto()
      .mutable_graph()
      ->mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(0)
      ->set_dim_value(8);
  model.Weight("rows", {8, 2}).Node("Concat", {"y", "rows"}, {"z"}, {{"axis", {1}}});
  EXPECT_TRUE(absl::StrContains(model.Import().status().message(),
                                "exported for a batch of 8, which may be why"));
}

TEST(OnnxImportTest, ShapesThatDependOnTheBatchSurviveAnyBatch) {
  // Exporters write x.view(x.size(0), 2, -1).flatten this way.
  Model model;
  model.Input("x", {0, 4, 3}).Integers("zero", {0}).Integers("two", {2}).Integers("rest", {-1});
  model.Weight("w", {5, 6}).Output("y");
  model.Node("Shape", {"x"}, {"shape"})
      .Node("Gather", {"shape", "zero"}, {"batch"}, {{"axis", {0}}})
      .Node("Mul", {"batch", "two"}, {"twice"})
      .Node("Concat", {"twice", "rest"}, {"to"}, {{"axis", {0}}})
      .Node("Reshape", {"x", "to"}, {"rows"})
      .Node("Gemm", {"rows", "w"}, {"z"}, {{"transB", {1}}})
      .Node("Concat", {"batch", "two", "rest"}, {"back"}, {{"axis", {0}}})
      .Node("Reshape", {"z", "back"}, {"y"});
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  for (int64_t batch : {1, 7}) {
    EXPECT_EQ(ShapeOf(imported->graph, "rows", batch), (std::vector<int64_t>{2 * batch, 6}));
    EXPECT_EQ(ShapeOf(imported->graph, "y", batch), (std::vector<int64_t>{batch, 2, 5}));
  }
}

TEST(OnnxImportTest, NamesOfTheFileKeepTheirShapesWhenTablesGrow) {
  for (int nodes = 1; nodes <= 64; ++nodes) {  // tables grow at some of them
    Model model;
    model.Input("x", {0, 4, 3}).Weight("w", {6, 5}).Output("y");
    model.Integers("to", {0, 2, 6}).Integers("back", {0, 4, 3});
    std::string last = "x";
    for (int i = 0; i < nodes; ++i) {
      const std::string next = absl::StrCat("r", i);
      model.Node("Reshape", {last, (nodes - i) % 2 == 1 ? "to" : "back"}, {next});
      last = next;
    }
    model.Node("MatMul", {last, "w"}, {"y"});
    const auto imported = model.Import();
    ASSERT_TRUE(imported.ok()) << nodes << " nodes: " << imported.status();
    EXPECT_EQ(ShapeOf(imported->graph, "y", 7), (std::vector<int64_t>{7, 2, 5}));
  }
}

TEST(OnnxImportTest, ABatchFixedInTheFileIsStillTheBatch) {
  Model model;
  model.Input("x", {8, 6}).Integers("to", {8, 2, 3}).Weight("w", {5, 3}).Output("y");
  model.Node("Reshape", {"x", "to"}, {"z"}).Node("Gemm", {"z", "w"}, {"y"}, {{"transB", {1}}});
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(ShapeOf(imported->graph, "y", 3), (std::vector<int64_t>{3, 2, 5}));
}

TEST(OnnxImportTest, AFixedBatchOfOneIsNotMistakenForAnotherSize) {
  for (const auto& [to, shape] :
       {std::pair(std::vector<int64_t>{-1, 6}, std::vector<int64_t>{8, 6}),
        std::pair(std::vector<int64_t>{1, -1, 3}, std::vector<int64_t>{4, 4, 3}),
        std::pair(std::vector<int64_t>{2, 6}, std::vector<int64_t>{8, 6})}) {
    Model model;
    model.Input("x", {1, 2, 6}).Integers("to", to).Weight("w", {shape.back(), 5}).Output("y");
    model.Node("Reshape", {"x", "to"}, {"z"}).Node("MatMul", {"z", "w"}, {"m"});
    model.Integers("back", {1, 2, -1}).Node("Reshape", {"m", "back"}, {"y"});
    const auto imported = model.Import();
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_EQ(ShapeOf(imported->graph, "z", 4), shape);
    EXPECT_EQ(ShapeOf(imported->graph, "y", 4)[0], 4);
  }
}

TEST(OnnxImportTest, AFixedBatchIsFoundByItsPositionInMemory) {
  // [1, 5, 6] -> [5, 1, 6] -> [5, 2, 3], as attention splits heads if the sequence comes first.
  Model model;
  model.Input("x", {1, 5, 6}).Integers("heads", {5, 2, 3}).Integers("rest", {-1, 2, 3}).Output("y");
  model.Weight("w", {3, 4}).Integers("back", {1, -1});
  model.Node("Transpose", {"x"}, {"t"}, {{"perm", {1, 0, 2}}})
      .Node("Reshape", {"t", "heads"}, {"h"})
      .Node("Reshape", {"t", "rest"}, {"r"})
      .Node("MatMul", {"h", "w"}, {"m"})
      .Node("MatMul", {"r", "w"}, {"n"})
      .Node("Add", {"m", "n"}, {"s"})
      .Node("Transpose", {"s"}, {"u"}, {{"perm", {1, 0, 2}}})
      .Node("Reshape", {"u", "back"}, {"y"});
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(ShapeOf(imported->graph, "h", 4), (std::vector<int64_t>{5, 8, 3}));
  EXPECT_EQ(ShapeOf(imported->graph, "r", 4), (std::vector<int64_t>{5, 8, 3}));
}

TEST(OnnxImportTest, AFaultNamesItsNodeOnce) {
  // The converter makes several operators for this node. The shapes do not fit the second one.
  Model model;
  model.Input("x", {0, 3}).Weight("w", {4, 2}).Weight("b", {7}).Output("y");
  model.Node("Gemm", {"x", "w", "b"}, {"y"});
  const std::string message(model.Import().status().message());
  EXPECT_THAT(message,
              testing::HasSubstr("1 node cannot be imported: Gemm (node 'the Gemm') (MatMul): "));
}

TEST(OnnxImportTest, HostileNodesAreErrors) {
  const auto message = [](Model model) {
    const auto imported = model.Import();
    return std::string(imported.ok() ? "accepted" : imported.status().message());
  };
  EXPECT_THAT(message([] {
                Model model = Linear();
                model.Node("Loop", {""}, {"", "z"}).Node("Add", {"z"}, {"v"});
                return model;
              }()),
              testing::Not(testing::StrEq("accepted")));
  Model grouped;
  grouped.Input("x", {0, 2, 2, 2}).Weight("w", {2, 2}).Output("y");
  grouped.Node("InstanceNormalization", {}, {"a"}).Node("GroupNormalization", {}, {"b"});
  grouped.Node("DepthToSpace", {"x"}, {"c"}, {{"blocksize", {int64_t{1} << 32}}});
  grouped.Node("AveragePool", {"x"}, {"d"}, {{"kernel_shape", {1, 1}}, {"strides", {0, 1}}});
  grouped.Node("TopK", {"x"}, {"", "e"}).Node("MatMul", {"x", "w"}, {"y"});
  EXPECT_THAT(message(std::move(grouped)), testing::HasSubstr("4 nodes cannot be imported"));
  Model tensors = Linear();
  tensors.proto().mutable_graph()->mutable_initializer(0)->clear_float_data();
  for (int i = 0; i < 6; ++i)
    tensors.proto().mutable_graph()->mutable_initializer(0)->add_int32_data(i);
  EXPECT_THAT(message(std::move(tensors)), testing::HasSubstr("has 0 bytes"));
}

TEST(OnnxImportTest, AConstantIndexOutsideIsRefused) {
  for (const int64_t index : {int64_t{3}, int64_t{-4}, INT64_MAX, INT64_MIN}) {
    Model model = Linear();
    model.Integers("at", {index}).Node("Gather", {"x", "at"}, {"picked"}, {{"axis", {1}}});
    model.proto().mutable_graph()->mutable_initializer(2)->clear_dims();
    // The largest numbers are rounded to doubles.
    EXPECT_THAT(std::string(model.Import().status().message()),
                testing::ContainsRegex("picks element -?[0-9]+ of 3"));
  }
}

TEST(OnnxImportTest, OnlyTheBatchMayBeOpen) {
  Model model;
  model.Input("x", {0, -1}).Weight("w", {2, 3}).Output("y").Node("MatMul", {"x", "w"}, {"y"});
  EXPECT_TRUE(absl::StrContains(model.Import().status().message(),
                                "input 'x' leaves dimension 1 (open) open"));
}

TEST(OnnxImportTest, ConstantArithmeticIsFolded) {
  // sqrt(Cast(Shape(x)[1])) as a divisor.
  Model model;
  model.Input("x", {0, 4}).Integers("one", {1}).Weight("w", {4, 4}).Output("y");
  model.Node("Shape", {"x"}, {"shape"})
      .Node("Gather", {"shape", "one"}, {"size"})
      .Node("Cast", {"size"}, {"number"}, {{"to", {TensorProto::FLOAT}}})
      .Node("Sqrt", {"number"}, {"root"})
      .Node("MatMul", {"x", "w"}, {"z"})
      .Node("Div", {"z", "root"}, {"y"});
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  int constants = 0;
  for (const v1::Node& node : imported->graph.nodes()) {
    EXPECT_TRUE(node.op() != "Sqrt" && node.op() != "Cast") << node.ShortDebugString();
    if (node.op() != "Constant") continue;
    ++constants;
    EXPECT_EQ(node.attributes().at("value").f(), 2.0);
  }
  EXPECT_EQ(constants, 1);
}

TEST(OnnxImportTest, ConstantsOfASmallFileHaveAMemoryLimit) {
  Model model = Linear();
  model.Integers("size", {1 << 24}).Node("ConstantOfShape", {"size"}, {"c"});
  for (int i = 0; i < 64; ++i) model.Node("Identity", {"c"}, {absl::StrCat("c", i)});
  model.Input("scores", {0, 2, 2}).Node("Trilu", {"scores"}, {"masked"});
  const std::string message(model.Import().status().message());
  EXPECT_THAT(message, testing::HasSubstr(
                           "58 Identity (first node 'the Identity') makes the file's constants "
                           "take more than the limit of 134217728 numbers in memory"));
  EXPECT_THAT(message, testing::HasSubstr("Trilu (node 'the Trilu') makes the file's constants"));
}

TEST(OnnxImportTest, BatchNormKeepsRunningValuesAsStatistics) {
  Model model;
  model.Input("x", {0, 2, 4, 4}).Output("y");
  for (const char* name : {"scale", "shift", "mean", "variance"}) model.Weight(name, {2});
  model.Node("BatchNormalization", {"x", "scale", "shift", "mean", "variance"}, {"n"})
      .Node("GlobalAveragePool", {"n"}, {"p"})
      .Node("Flatten", {"p"}, {"y"});
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  int statistics = 0;
  for (const v1::Parameter& parameter : imported->graph.parameters()) {
    if (!parameter.has_statistic_momentum()) continue;
    ++statistics;
    EXPECT_NEAR(parameter.statistic_momentum(), 0.1, 1e-6);
  }
  EXPECT_EQ(statistics, 2);
  EXPECT_TRUE(Differentiate(imported->graph).ok());
}

TEST(OnnxImportTest, NodesThatDoNotLeadToTheLossAreDropped) {
  Model model = Linear();
  model.Weight("unused", {4, 4}).Node("MatMul", {"x", "w"}, {"side"});
  model.proto().mutable_graph()->mutable_node(1)->set_input(1, "other");
  model.Weight("other", {3, 9});
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.parameters_size(), 2);
}

TEST(OnnxImportTest, OtherFilesAreRefused) {
  v1::OnnxModel model;
  model.set_path(testing::TempDir() + "/absent.onnx");
  EXPECT_EQ(ReasonOf(ImportOnnx(model).status()), "MODEL_NOT_FOUND");
  const std::string text = testing::TempDir() + "/text.onnx";
  std::ofstream(text) << "this is no model\n";
  model.set_path(text);
  EXPECT_TRUE(absl::StrContains(ImportOnnx(model).status().message(), "is no ONNX file"));
  model.set_path(testing::TempDir());
  EXPECT_FALSE(ImportOnnx(model).ok());
  model.set_path(testing::TempDir() + "/pipe.onnx");
  ASSERT_EQ(mkfifo(model.path().c_str(), 0600), 0);
  EXPECT_TRUE(absl::StrContains(ImportOnnx(model).status().message(), "is no regular file"));
  Model foreign;
  foreign.Input("x", {0, 3}).Node("Relu", {"x"}, {"caf\xe9"}).Output("caf\xe9");
  EXPECT_EQ(ReasonOf(foreign.Import().status()), "MODEL_INVALID");
  EXPECT_TRUE(absl::StrContains(foreign.Import().status().message(),
                                "has the output 'caf?', which is not UTF-8"))
      << foreign.Import().status();
  Model old(9);
  old.Input("x", {0, 3}).Node("Relu", {"x"}, {"y"}).Output("y");
  EXPECT_TRUE(absl::StrContains(old.Import().status().message(), "is of opset 9; 13 to 24"));
}

// ---------------------------------------------------------------- roles of initialisers

const InitializerDecision* Find(const ImportedModel& model, const std::string& name) {
  for (const InitializerDecision& decision : model.initializers) {
    if (decision.name == name) return &decision;
  }
  return nullptr;
}

bool IsParameter(const ImportedModel& model, const std::string& name) {
  for (const v1::Parameter& parameter : model.graph.parameters()) {
    if (parameter.name() == name) return true;
  }
  return false;
}

TEST(OnnxRolesTest, BuffersAreNotTrained) {
  // (x - mean) / std, a causal mask of -infinity, and the weights between them.
  Model model;
  model.Input("x", {0, 4}).Weight("mean", {4}).Weight("std", {4}).Weight("w", {4, 4}).Output("y");
  model.Weight("shift", {4, 4});
  model.proto().mutable_graph()->mutable_initializer(3)->set_float_data(1, -HUGE_VALF);
  model.Node("Sub", {"x", "mean"}, {"a"})
      .Node("Div", {"a", "std"}, {"b"})
      .Node("MatMul", {"b", "w"}, {"c"})
      .Node("Unsqueeze", {"c", "one"}, {"d"})
      .Node("Add", {"d", "shift"}, {"e"})
      .Node("ReduceMean", {"e"}, {"y"}, {{"axes", {1, 1}}, {"keepdims", {0}}});
  model.Integers("one", {1});
  model.proto()
      .mutable_graph()
      ->mutable_node(5)
      ->mutable_attribute(0)
      ->mutable_ints()
      ->RemoveLast();
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.parameters_size(), 1);
  EXPECT_TRUE(IsParameter(*imported, "w"));
  EXPECT_EQ(Find(*imported, "mean")->role, InitializerRole::kConstant);
  EXPECT_EQ(Find(*imported, "shift")->reason, "holds infinities, as a mask does");
  EXPECT_TRUE(imported->warnings.empty()) << imported->warnings[0];
}

// y = relu(x layer.w) times the initialiser `name`.
Model WithOperand(const std::string& name) {
  Model model;
  model.Input("x", {0, 3}).Weight("layer.w", {3, 2}).Weight(name, {1, 2}).Output("y");
  model.Node("MatMul", {"x", "layer.w"}, {"a"})
      .Node("Relu", {"a"}, {"b"})
      .Node("Mul", {"b", name}, {"y"});
  return model;
}

TEST(OnnxRolesTest, NamesDecideIfUsesDoNotAndAGuessIsAWarning) {
  for (const auto& [name, trained, doubtful] :
       {std::tuple("block.layer_scale", true, false), std::tuple("block.mask", false, false),
        std::tuple("onnx::Mul_12", false, false), std::tuple("block.thing", true, true),
        std::tuple("positions", true, true), std::tuple("unsqueeze_3", false, true),
        std::tuple("block.gamma.7", true, false)}) {
    const auto imported = WithOperand(name).Import();
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_EQ(IsParameter(*imported, name), trained) << name;
    EXPECT_EQ(Find(*imported, name)->doubtful, doubtful) << name;
    EXPECT_EQ(imported->warnings.size(), doubtful ? 1 : 0) << name;
  }
}

TEST(OnnxRolesTest, PatternsOfTheUserDecide) {
  v1::OnnxModel options;
  options.add_freeze("block.*scale");
  auto imported = WithOperand("block.layer_scale").Import(options);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_FALSE(IsParameter(*imported, "block.layer_scale"));
  EXPECT_EQ(Find(*imported, "block.layer_scale")->reason, "onnx.freeze: block.*scale");
  options.Clear();
  options.add_train("*.mask");
  imported = WithOperand("block.mask").Import(options);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_TRUE(IsParameter(*imported, "block.mask"));
  options.add_train("nothing");
  EXPECT_TRUE(absl::StrContains(WithOperand("block.mask").Import(options).status().message(),
                                "onnx.train: no floating initialiser matches 'nothing'"));
}

// Two layers with biases that the exporter wrote once. The second layer has its own weight, or
// shares the first.
Model TwoLayers(const std::string& second_weight) {
  Model model;
  model.Input("x", {0, 3}).Weight("a.weight", {3, 3}).Weight("b.weight", {3, 3}).Output("y");
  model.Filled("a.bias", {3}, 0);
  model.Node("Gemm", {"x", "a.weight", "a.bias"}, {"h"})
      .Node("Gemm", {"h", second_weight, "a.bias"}, {"y"});
  return model;
}

TEST(OnnxSharingTest, EqualTensorsOfDifferentLayersTrainSeparately) {
  auto imported = TwoLayers("b.weight").Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.parameters_size(), 4);
  EXPECT_TRUE(IsParameter(*imported, "a.bias.2"));
  ASSERT_EQ(imported->notes.size(), 1);
  EXPECT_TRUE(
      absl::StrContains(imported->notes[0], "'a.bias' was written once for 2 equal tensors"));

  v1::OnnxModel tied;
  tied.add_tie("*.bias");
  imported = TwoLayers("b.weight").Import(tied);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.parameters_size(), 3);
}

TEST(OnnxSharingTest, NonzeroBiasesOfCopiedLayersTrainSeparately) {
  Model model = TwoLayers("b.weight");
  model.proto().mutable_graph()->mutable_initializer(2)->set_float_data(0, 0.5f);
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_TRUE(IsParameter(*imported, "a.bias.2"));
}

TEST(OnnxSharingTest, ALayerThatIsUsedTwiceIsOne) {
  auto imported = TwoLayers("a.weight").Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.parameters_size(), 2);
  // The file does not tell whether it is one layer, or two that were copied.
  ASSERT_EQ(imported->warnings.size(), 1);
  EXPECT_TRUE(absl::StrContains(imported->warnings[0], "'a.weight' (2 places"));

  v1::OnnxModel apart;
  apart.add_untie("a.*");
  imported = TwoLayers("a.weight").Import(apart);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.parameters_size(), 4);
  EXPECT_EQ(imported->initial_values[0].size(), 9);
}

TEST(OnnxSharingTest, AHeadThatSharesTheEmbeddingsWeightStaysTied) {
  Model model;
  model.Input("ids", {0, 4}, TensorProto::INT64).Weight("wte.weight", {10, 6}).Output("y");
  model.Node("Gather", {"wte.weight", "ids"}, {"e"})
      .Node("Transpose", {"wte.weight"}, {"t"}, {{"perm", {1, 0}}})
      .Node("MatMul", {"e", "t"}, {"y"});
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.parameters_size(), 1);
  EXPECT_TRUE(imported->warnings.empty());
  EXPECT_EQ(imported->notes.size(), 1);
}

TEST(OnnxSharingTest, ATransposedCopyOfTheEmbeddingIsTheEmbedding) {
  Model model;
  model.Input("ids", {0, 4}, TensorProto::INT64)
      .Weight("wte.weight", {3, 2})
      .Weight("val_7", {2, 3});
  const float transposed[] = {0.25f, 0.75f, 1.25f, 0.5f, 1.0f, 1.5f};
  TensorProto& copy = *model.proto().mutable_graph()->mutable_initializer(1);
  copy.mutable_float_data()->Assign(std::begin(transposed), std::end(transposed));
  model.Output("y")
      .Node("Gather", {"wte.weight", "ids"}, {"e"})
      .Node("MatMul", {"e", "val_7"}, {"y"});
  auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.parameters_size(), 1);
  copy.set_float_data(5, 1.75f);
  imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.parameters_size(), 2);
}

TEST(OnnxSharingTest, EqualNumberedWeightsAreOneIfTheUserTiesThem) {
  Model model;
  model.Input("x", {0, 3})
      .Weight("val_1", {3, 3})
      .Weight("val_2", {3, 3})
      .Weight("a.bias", {3})
      .Output("y");
  model.Node("MatMul", {"x", "val_1"}, {"a"}).Node("Add", {"a", "a.bias"}, {"b"});
  model.Node("MatMul", {"b", "val_2"}, {"y"});
  auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.parameters_size(), 3);
  ASSERT_EQ(imported->warnings.size(), 1);
  EXPECT_TRUE(absl::StrContains(imported->warnings[0], "'val_2' equals 'val_1'"));
  v1::OnnxModel tied;
  tied.add_tie("val_*");
  imported = model.Import(tied);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.parameters_size(), 2);
  EXPECT_TRUE(imported->warnings.empty());
}

TEST(OnnxSharingTest, BranchesThatSplitOrJoinAreNotOneLayer) {
  // Queries and keys of one input, with biases that the exporter merged, and two norms that are
  // added.
  Model model;
  model.Input("x", {0, 4, 6}).Weight("q.weight", {6, 6}).Weight("k.weight", {6, 6}).Output("y");
  model.Filled("q.bias", {6}, 0).Filled("n1.weight", {6}, 1).Filled("n1.bias", {6}, 0);
  model.Weight("o.weight", {6, 2});
  model.Node("MatMul", {"x", "q.weight"}, {"q"})
      .Node("Add", {"q", "q.bias"}, {"qb"})
      .Node("MatMul", {"x", "k.weight"}, {"k"})
      .Node("Add", {"k", "q.bias"}, {"kb"})
      .Node("LayerNormalization", {"qb", "n1.weight", "n1.bias"}, {"qn"})
      .Node("LayerNormalization", {"kb", "n1.weight", "n1.bias"}, {"kn"})
      .Node("Add", {"qn", "kn"}, {"sum"})
      .Node("MatMul", {"sum", "o.weight"}, {"y"});
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  for (const char* copy : {"q.bias.2", "n1.weight.2", "n1.bias.2"}) {
    EXPECT_TRUE(IsParameter(*imported, copy)) << copy;
  }
}

TEST(OnnxSharingTest, TwoTokensWithEqualInitialValuesAreSeparate) {
  Model model;
  model.Input("x", {0, 2, 3}).Filled("cls_token", {1, 1, 3}, 0).Integers("sizes", {-1, 1, 3});
  model.Weight("w", {3, 2})
      .Output("y")
      .Integers("three", {3})
      .Integers("zero", {0})
      .Integers("one", {1});
  model.Node("Shape", {"x"}, {"shape"})
      .Node("Slice", {"shape", "zero", "one"}, {"batch"})
      .Node("Concat", {"batch", "one", "three"}, {"to"}, {{"axis", {0}}})
      .Node("Expand", {"cls_token", "to"}, {"a"})
      .Node("Expand", {"cls_token", "to"}, {"b"})
      .Node("Concat", {"a", "b", "x"}, {"c"}, {{"axis", {1}}})
      .Node("MatMul", {"c", "w"}, {"y"});
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_TRUE(IsParameter(*imported, "cls_token.2"));
}

TEST(OnnxRolesTest, ASplitGroupNormTrainsItsGainAndBias) {
  Model model;
  model.Input("x", {0, 2, 4, 4}).Weight("c.weight", {4, 2, 1, 1}).Filled("val_1", {2}, 1);
  model.Filled("val_2", {2}, 0).Filled("val_3", {4, 1, 1}, 1).Filled("val_4", {4, 1, 1}, 0);
  model.Integers("groups", {0, 2, -1}).Integers("back", {0, 4, 4, 4}).Output("y");
  model.Node("Conv", {"x", "c.weight"}, {"a"})
      .Node("Reshape", {"a", "groups"}, {"b"})
      .Node("InstanceNormalization", {"b", "val_1", "val_2"}, {"d"})
      .Node("Reshape", {"d", "back"}, {"e"})
      .Node("Mul", {"e", "val_3"}, {"f"})
      .Node("Add", {"f", "val_4"}, {"g"})
      .Node("GlobalAveragePool", {"g"}, {"p"})
      .Node("Flatten", {"p"}, {"y"});
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.parameters_size(), 3);
  EXPECT_TRUE(IsParameter(*imported, "val_3") && IsParameter(*imported, "val_4"));
  EXPECT_TRUE(imported->warnings.empty()) << imported->warnings[0];
}

TEST(OnnxRolesTest, RunningStatisticsStayStatisticsIfFrozen) {
  Model model;
  model.Input("x", {0, 2, 4, 4})
      .Weight("c.weight", {2, 2, 1, 1})
      .Weight("n.weight", {2})
      .Output("y");
  for (const char* name : {"n.bias", "n.running_mean", "n.running_var"}) model.Weight(name, {2});
  model.Node("Conv", {"x", "c.weight"}, {"a"})
      .Node("BatchNormalization", {"a", "n.weight", "n.bias", "n.running_mean", "n.running_var"},
            {"b"})
      .Node("GlobalAveragePool", {"b"}, {"p"})
      .Node("Flatten", {"p"}, {"y"});
  v1::OnnxModel options;
  options.add_freeze("n.*");
  const auto imported = model.Import(options);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(Find(*imported, "n.running_var")->role, InitializerRole::kStatistic);
  EXPECT_EQ(Find(*imported, "n.weight")->role, InitializerRole::kConstant);
}

TEST(OnnxRolesTest, PartsOfAComputedWeightAreAGuessUnlessTheNameTells) {
  Model model;
  model.Input("x", {0, 3}).Weight("f.permutation", {3, 3}).Weight("f.weight_v", {3, 3}).Output("y");
  model.Weight("f.mask", {3, 3});
  model.Node("MatMul", {"f.permutation", "f.weight_v"}, {"p"})
      .Node("Mul", {"p", "f.mask"}, {"w"})
      .Node("MatMul", {"x", "w"}, {"y"});
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_TRUE(Find(*imported, "f.permutation")->doubtful);
  EXPECT_FALSE(Find(*imported, "f.weight_v")->doubtful);
  EXPECT_EQ(Find(*imported, "f.mask")->role, InitializerRole::kConstant);
  EXPECT_EQ(imported->warnings.size(), 1);
}

TEST(OnnxSharingTest, NormsAreSeparatedUnderTheExportersNames) {
  Model model;
  model.Input("x", {0, 2, 4, 4})
      .Weight("c1.weight", {2, 2, 1, 1})
      .Weight("c2.weight", {2, 2, 1, 1});
  model.Filled("bn1.weight", {2}, 1).Filled("bn1.bias", {2}, 0).Output("y");
  model.Node("Identity", {"bn1.weight"}, {"bn2.weight"})
      .Node("Conv", {"x", "c1.weight"}, {"a"})
      .Node("BatchNormalization", {"a", "bn1.weight", "bn1.bias", "bn1.bias", "bn1.weight"}, {"b"})
      .Node("Conv", {"b", "c2.weight"}, {"c"})
      .Node("BatchNormalization", {"c", "bn2.weight", "bn1.bias", "bn1.bias", "bn1.weight"}, {"d"})
      .Node("GlobalAveragePool", {"d"}, {"p"})
      .Node("Flatten", {"p"}, {"y"});
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  int trained = 0, statistics = 0;
  for (const v1::Parameter& parameter : imported->graph.parameters()) {
    ++(parameter.has_statistic_momentum() ? statistics : trained);
  }
  EXPECT_EQ(trained, 6);
  EXPECT_EQ(statistics, 4);
  EXPECT_TRUE(IsParameter(*imported, "bn2.weight"));
}

TEST(OnnxSharingTest, TheExportedFileHasTheCopies) {
  Model model = TwoLayers("b.weight");
  v1::OnnxModel source;
  source.set_path(model.Write("two_layers.onnx"));
  const std::string saved = testing::TempDir() + "/two_layers_saved.onnx";
  ASSERT_TRUE(ExportOnnx(source, saved, {{"a.bias", {1, 2, 3}}, {"a.bias.2", {4, 5, 6}}}).ok());
  const auto file = OnnxFile::Open(saved);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->graph().node(1).input(2), "a.bias.2");
  const TensorProto& copy = file->graph().initializer(file->graph().initializer_size() - 1);
  EXPECT_EQ(copy.name(), "a.bias.2");
  EXPECT_EQ(file->Floats(copy).value(), (std::vector<float>{4, 5, 6}));
}

TEST(OnnxImportTest, BatchNormsFoldedIntoConvolutionsAreReported) {
  for (const char* output : {"getitem_3", "conv"}) {
    Model model;
    model.Input("x", {0, 2, 4, 4})
        .Weight("c.weight", {3, 2, 1, 1})
        .Weight("c.bias", {3})
        .Output("y");
    model.Node("Conv", {"x", "c.weight", "c.bias"}, {output})
        .Node("GlobalAveragePool", {output}, {"p"})
        .Node("Flatten", {"p"}, {"y"});
    const auto imported = model.Import();
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_EQ(imported->warnings.size(), output == std::string("conv") ? 0 : 1);
  }
}

// ---------------------------------------------------------------- structure

TEST(OnnxImportTest, FunctionsOfTheFileAreInlined) {
  // Squared(v; factor) = LeakyRelu(v; factor) * v. It is called twice, once with a factor of 0.5
  // and once without one. The second call's result is the output.
  Model model;
  model.Input("x", {0, 3}).Weight("w", {3, 2}).Output("y");
  model.Node("MatMul", {"x", "w"}, {"a"})
      .Node("Squared", {"a"}, {"b"})
      .Node("Squared", {"b"}, {"y"});
  for (int n : {1, 2}) model.proto().mutable_graph()->mutable_node(n)->set_domain("mine");
  onnx::FunctionProto& function = *model.proto().add_functions();
  function.set_name("Squared");
  function.set_domain("mine");
  function.add_input("v");
  function.add_output("r");
  for (const auto& [op, output] : {std::pair("LeakyRelu", "inner"), std::pair("Mul", "r")}) {
    onnx::NodeProto& node = *function.add_node();
    node.set_op_type(op);
    node.add_input("v");
    if (op == std::string("Mul")) node.add_input("inner");
    node.add_output(output);
  }
  AttributeProto& slope = *function.mutable_node(0)->add_attribute();
  slope.set_name("alpha");
  slope.set_ref_attr_name("factor");
  AttributeProto& given = *model.proto().mutable_graph()->mutable_node(1)->add_attribute();
  given.set_name("factor");
  given.set_f(0.5f);
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  std::vector<double> slopes;
  for (const v1::Node& node : imported->graph.nodes()) {
    if (node.op() == "LeakyRelu") slopes.push_back(node.attributes().at("slope").f());
  }
  ASSERT_EQ(slopes.size(), 2);
  EXPECT_FLOAT_EQ(slopes[0], 0.5f);
  EXPECT_FLOAT_EQ(slopes[1], 0.01f);
  EXPECT_EQ(ShapeOf(imported->graph, imported->graph.logits(), 7), (std::vector<int64_t>{7, 2}));
}

TEST(OnnxImportTest, AFunctionThatCallsItselfIsRefused) {
  Model model = Linear();
  model.Node("Endless", {"x"}, {"e"});
  model.proto().mutable_graph()->mutable_node(1)->set_domain("mine");
  onnx::FunctionProto& function = *model.proto().add_functions();
  function.set_name("Endless");
  function.set_domain("mine");
  function.add_input("v");
  function.add_output("r");
  for (int i = 0; i < 2; ++i) {
    onnx::NodeProto& node = *function.add_node();
    node.set_op_type("Endless");
    node.set_domain("mine");
    node.add_input("v");
    node.add_output(i == 0 ? "q" : "r");
  }
  EXPECT_TRUE(absl::StrContains(model.Import().status().message(), "without an end"));
}

TEST(OnnxImportTest, AFunctionThatMultipliesItsAttributesIsRefused) {
  Model model = Linear();
  onnx::FunctionProto& function = *model.proto().add_functions();
  function.set_name("Heavy");
  function.set_domain("mine");
  function.add_output("r");
  onnx::NodeProto& node = *function.add_node();
  node.set_op_type("Constant");
  node.add_output("r");
  AttributeProto& attribute = *node.add_attribute();
  attribute.set_name("value");
  attribute.mutable_t()->set_raw_data(std::string(1 << 20, '\0'));
  for (int i = 0; i < 300; ++i) {
    model.Node("Heavy", {}, {absl::StrCat("h", i)});
    model.proto().mutable_graph()->mutable_node(i + 1)->set_domain("mine");
  }
  EXPECT_THAT(std::string(model.Import().status().message()),
              testing::HasSubstr("is one too many: with its functions written out"));
}

TEST(OnnxImportTest, AKnownConditionSelectsItsBranch) {
  Model model;
  model.Input("x", {0, 3})
      .Weight("w", {3, 2})
      .Integers("three", {3})
      .Integers("at", {1})
      .Output("y");
  model.Node("Shape", {"x"}, {"shape"})
      .Node("Gather", {"shape", "at"}, {"size"})
      .Node("Equal", {"size", "three"}, {"is_three"})
      .Node("If", {"is_three"}, {"chosen"})
      .Node("MatMul", {"chosen", "w"}, {"y"});
  for (const char* branch : {"then_branch", "else_branch"}) {
    AttributeProto& attribute = *model.proto().mutable_graph()->mutable_node(3)->add_attribute();
    attribute.set_name(branch);
    onnx::NodeProto& node = *attribute.mutable_g()->add_node();
    node.set_op_type(branch == std::string("then_branch") ? "Tanh" : "Loop");
    node.add_input("x");
    node.add_output(branch);
    attribute.mutable_g()->add_output()->set_name(branch);
  }
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->graph.nodes(0).op(), "Tanh");
}

TEST(OnnxImportTest, SequencesThatAreSplitAndIndexedByConstantsAreParts) {
  Model model;
  model.Input("x", {0, 5}).Weight("w", {1, 2}).Integers("parts", {2, 2, 1}).Output("y");
  for (const auto& [name, value] :
       {std::pair("two", 2), {"first", 0}, {"last", -1}, {"third", 3}}) {
    TensorProto& scalar = *model.proto().mutable_graph()->add_initializer();
    scalar.set_name(name);
    scalar.set_data_type(TensorProto::INT64);
    scalar.add_int64_data(value);
  }
  model.Node("SplitToSequence", {"x", "two"}, {"equal"}, {{"axis", {1}}})
      .Node("SplitToSequence", {"x", "parts"}, {"listed"}, {{"axis", {-1}}})
      .Node("SequenceAt", {"equal", "first"}, {"a"})
      .Node("SequenceAt", {"listed", "last"}, {"b"})
      .Node("MatMul", {"b", "w"}, {"c"})
      .Node("Add", {"a", "c"}, {"y"});
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(ShapeOf(imported->graph, "y", 4), (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(imported->graph.nodes(0).op(), "Split");

  model.proto().mutable_graph()->mutable_node(3)->set_input(1, "third");
  EXPECT_THAT(std::string(model.Import().status().message()),
              testing::HasSubstr("takes part 3 of 3"));
  model.proto().mutable_graph()->mutable_node(3)->set_input(0, "x");
  EXPECT_THAT(std::string(model.Import().status().message()),
              testing::HasSubstr("indexes a sequence that no split has made"));
}

TEST(OnnxImportTest, ConstantsThatDependOnTheBatchAreComputedInTheRun) {
  // A class token for each sample, in front of its rows; and the sample's own row by its number.
  Model model;
  model.Input("x", {0, 2, 3}).Weight("cls_token", {1, 1, 3}).Integers("zero", {0}).Output("y");
  model.Integers("minus", {-1}).Integers("one", {1});
  model.Node("Shape", {"x"}, {"shape"})
      .Node("Slice", {"shape", "zero", "one"}, {"batch"})
      .Node("Concat", {"batch", "minus", "minus"}, {"to"}, {{"axis", {0}}})
      .Node("Expand", {"cls_token", "sizes"}, {"token"})
      .Node("Concat", {"token", "x"}, {"rows"}, {{"axis", {1}}})
      .Node("Squeeze", {"batch"}, {"count"})
      .Node("Range", {"begin", "count", "step"}, {"samples"})
      .Node("Unsqueeze", {"samples", "one"}, {"column"})
      .Node("Concat", {"column", "column"}, {"twice"}, {{"axis", {1}}})
      .Node("Sub", {"twice", "column"}, {"zeros"})
      .Node("Slice", {"zeros", "zero", "one", "one"}, {"first"})
      .Node("Concat", {"column", "first"}, {"places"}, {{"axis", {1}}})
      .Node("GatherND", {"rows", "places"}, {"y"});
  // Expand's sizes are [batch, 1, 3].
  onnx::NodeProto& sizes = *model.proto().mutable_graph()->mutable_node(2);
  sizes.set_output(0, "sizes");
  sizes.set_input(1, "one");
  sizes.set_input(2, "three");
  model.Integers("three", {3});
  for (const auto& [name, value] : {std::pair("begin", 0), std::pair("step", 1)}) {
    TensorProto& scalar = *model.proto().mutable_graph()->add_initializer();
    scalar.set_name(name);
    scalar.set_data_type(TensorProto::INT64);
    scalar.add_int64_data(value);
  }
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  for (int64_t batch : {1, 4, 7}) {
    EXPECT_EQ(ShapeOf(imported->graph, "rows", batch), (std::vector<int64_t>{batch, 3, 3}));
    EXPECT_EQ(ShapeOf(imported->graph, "y", batch), (std::vector<int64_t>{batch, 3}));
  }
}

TEST(OnnxFileTest, ExternalDataIsReadOnlyFromTheFilesFolder) {
  const std::string folder = testing::TempDir() + "/external";
  std::filesystem::create_directories(folder);
  Model model = Linear();
  TensorProto& bias = *model.proto().mutable_graph()->mutable_initializer(1);
  bias.clear_float_data();
  bias.set_data_location(TensorProto::EXTERNAL);
  const auto entry = [&](const char* key, const std::string& value) {
    onnx::StringStringEntryProto& added = *bias.add_external_data();
    added.set_key(key);
    added.set_value(value);
  };
  entry("location", "weights.bin");
  entry("offset", "4");
  const float values[] = {9, 1.5f, -2};
  const auto data = folder + "/weights.bin";
  std::ofstream(data, std::ios::binary)
      .write(reinterpret_cast<const char*>(values), sizeof(values));
  const std::string path = model.Write("external/model.onnx");

  auto file = OnnxFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto read = file->Floats(file->graph().initializer(1));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, (std::vector<float>{1.5f, -2}));

  std::vector<std::string> asked;
  file = OnnxFile::Open(path, [&](const std::string& beside) {
    asked.push_back(beside);
    return absl::PermissionDeniedError("it is a link");
  });
  EXPECT_TRUE(absl::StrContains(file->Floats(file->graph().initializer(1)).status().message(),
                                "may not be read: it is a link"));
  EXPECT_EQ(asked, std::vector<std::string>{data}) << "and the file itself was asked about before";

  bias.mutable_external_data(1)->set_value("8");
  file = OnnxFile::Open(model.Write("external/model.onnx"));
  EXPECT_TRUE(absl::StrContains(file->Floats(file->graph().initializer(1)).status().message(),
                                "which has 12"));
  bias.mutable_external_data(0)->set_value("pipe");
  ASSERT_EQ(mkfifo((folder + "/pipe").c_str(), 0600), 0);
  file = OnnxFile::Open(model.Write("external/model.onnx"));
  EXPECT_TRUE(absl::StrContains(file->Floats(file->graph().initializer(1)).status().message(),
                                "/pipe, which is no regular file"));
  bias.mutable_external_data(0)->set_value("../external/weights.bin");
  file = OnnxFile::Open(model.Write("external/model.onnx"));
  EXPECT_TRUE(absl::StrContains(file->Floats(file->graph().initializer(1)).status().message(),
                                "not beside the file"));
}

TEST(OnnxFileTest, ExternalDataIsNoLargerThanMemory) {
  Model model = Linear();
  TensorProto& weight = *model.proto().mutable_graph()->mutable_initializer(0);
  weight.clear_float_data();
  weight.set_data_location(TensorProto::EXTERNAL);
  weight.set_dims(0, int64_t{1} << 39);
  weight.set_dims(1, 2);
  EXPECT_THAT(std::string(model.Import().status().message()),
              testing::HasSubstr("has over 4398046511104 bytes of initialisers in files beside"));
}

TEST(OnnxFileTest, SavesReplacedWeightsInTheirOwnType) {
  Model model = Linear();
  model.proto().mutable_graph()->mutable_initializer(0)->set_data_type(TensorProto::FLOAT16);
  TensorProto& half = *model.proto().mutable_graph()->mutable_initializer(0);
  half.clear_float_data();
  half.set_raw_data(std::string(12, '\0'));
  const auto file = OnnxFile::Open(model.Write("half.onnx"));
  ASSERT_TRUE(file.ok());
  const std::vector<float> weights = {1, -0.5f, 65504, 6.1035156e-05f, 5.9604645e-08f, 0};
  const std::string saved = testing::TempDir() + "/saved.onnx";
  ASSERT_TRUE(file->Save(saved, {{"w", weights}}).ok());
  const auto again = OnnxFile::Open(saved);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->Floats(again->graph().initializer(0)).value(), weights);
  EXPECT_EQ(again->Floats(again->graph().initializer(1)).value(),
            (std::vector<float>{0.25f, 0.5f}));
}

}  // namespace
}  // namespace muster::onnx_import_test
