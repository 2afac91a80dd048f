#include "lib/graph/onnx/onnx_import.h"

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/graph/autodiff.h"
#include "lib/graph/onnx/onnx_file.h"
#include "lib/graph/shape_inference.h"
#include "lib/status/status.h"
#include "proto/third_party/onnx/onnx.pb.h"

namespace muster {
namespace {

using onnx::AttributeProto;
using onnx::TensorProto;

// Builds small ONNX files.
class Model {
 public:
  explicit Model(int64_t opset = 17) {
    proto_.set_ir_version(8);
    proto_.add_opset_import()->set_version(opset);
  }

  Model& Input(const std::string& name, std::vector<int64_t> shape,
               int32_t type = TensorProto::FLOAT) {
    Describe(*proto_.mutable_graph()->add_input(), name, shape, type);
    return *this;
  }

  Model& Output(const std::string& name) {
    Describe(*proto_.mutable_graph()->add_output(), name, {0}, TensorProto::FLOAT);
    return *this;
  }

  Model& Weight(const std::string& name, std::vector<int64_t> shape) {
    TensorProto& tensor = *proto_.mutable_graph()->add_initializer();
    tensor.set_name(name);
    tensor.set_data_type(TensorProto::FLOAT);
    int64_t elements = 1;
    for (int64_t size : shape) {
      tensor.add_dims(size);
      elements *= size;
    }
    for (int64_t i = 0; i < elements; ++i) tensor.add_float_data(0.25f * (i + 1));
    return *this;
  }

  Model& Integers(const std::string& name, std::vector<int64_t> values) {
    TensorProto& tensor = *proto_.mutable_graph()->add_initializer();
    tensor.set_name(name);
    tensor.set_data_type(TensorProto::INT64);
    tensor.add_dims(values.size());
    for (int64_t value : values) tensor.add_int64_data(value);
    return *this;
  }

  Model& Node(const std::string& op, std::vector<std::string> inputs,
              std::vector<std::string> outputs,
              std::vector<std::pair<std::string, std::vector<int64_t>>> attributes = {}) {
    onnx::NodeProto& node = *proto_.mutable_graph()->add_node();
    node.set_op_type(op);
    node.set_name("the " + op);
    node.mutable_input()->Add(inputs.begin(), inputs.end());
    node.mutable_output()->Add(outputs.begin(), outputs.end());
    for (const auto& [name, values] : attributes) {
      AttributeProto& attribute = *node.add_attribute();
      attribute.set_name(name);
      if (values.size() == 1) attribute.set_i(values[0]);
      attribute.mutable_ints()->Add(values.begin(), values.end());
    }
    return *this;
  }

  onnx::ModelProto& proto() { return proto_; }

  std::string Write(const std::string& name) const {
    const std::string path = testing::TempDir() + "/" + name;
    std::ofstream stream(path, std::ios::binary);
    EXPECT_TRUE(proto_.SerializeToOstream(&stream));
    return path;
  }

  absl::StatusOr<ImportedModel> Import(const std::string& loss = "") const {
    v1::OnnxModel model;
    model.set_path(Write(testing::UnitTest::GetInstance()->current_test_info()->name() +
                         std::string(".onnx")));
    model.set_loss(loss);
    return ImportOnnx(model);
  }

 private:
  static void Describe(onnx::ValueInfoProto& value, const std::string& name,
                       const std::vector<int64_t>& shape, int32_t type) {
    value.set_name(name);
    onnx::TypeProto::Tensor& tensor = *value.mutable_type()->mutable_tensor_type();
    tensor.set_elem_type(type);
    for (int64_t size : shape) {
      onnx::TensorShapeProto::Dimension& dimension = *tensor.mutable_shape()->add_dim();
      if (size > 0) {
        dimension.set_dim_value(size);
      } else {
        dimension.set_dim_param(size == 0 ? "batch" : "open");
      }
    }
  }

  onnx::ModelProto proto_;
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

TEST(OnnxImportTest, OtherLossesTakeFloatingLabels) {
  const auto model = Linear().Import("mean_squared_error");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->graph.inputs(1).dtype(), v1::DTYPE_F32);
  EXPECT_EQ(ShapeOf(model->graph, "target", 4), (std::vector<int64_t>{4, 2}));
  EXPECT_TRUE(absl::StrContains(Linear().Import("hinge").status().message(), "'hinge' is unknown"));
}

TEST(OnnxImportTest, EveryOperatorThatIsNotSupportedIsNamedWithItsNode) {
  Model model = Linear();
  model.Node("Einsum", {"y"}, {"z"}).Node("TopK", {"z"}, {"values", "indices"});
  const absl::Status status = model.Import().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), "MODEL_INVALID");
  EXPECT_TRUE(absl::StrContains(
      status.message(),
      "2 nodes have operators that cannot be imported: Einsum (node 'the Einsum'), TopK"))
      << status;
}

TEST(OnnxImportTest, ShapesThatDependOnTheBatchSurviveAnyBatch) {
  // x.view(x.size(0), 2, -1).flatten, as exporters write it.
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

TEST(OnnxImportTest, ABatchThatTheFileFixesIsTheBatchAllTheSame) {
  Model model;
  model.Input("x", {8, 6}).Integers("to", {8, 2, 3}).Weight("w", {5, 3}).Output("y");
  model.Node("Reshape", {"x", "to"}, {"z"}).Node("Gemm", {"z", "w"}, {"y"}, {{"transB", {1}}});
  const auto imported = model.Import();
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(ShapeOf(imported->graph, "y", 3), (std::vector<int64_t>{3, 2, 5}));
}

TEST(OnnxImportTest, OnlyTheBatchMayBeOpen) {
  Model model;
  model.Input("x", {0, -1}).Weight("w", {2, 3}).Output("y").Node("MatMul", {"x", "w"}, {"y"});
  EXPECT_TRUE(absl::StrContains(model.Import().status().message(),
                                "input 'x' leaves dimension 1 (open) open"));
}

TEST(OnnxImportTest, ConstantArithmeticIsDoneHere) {
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
    EXPECT_EQ(node.attributes().at("values").numbers().values(0), 2.0);
  }
  EXPECT_EQ(constants, 1);
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

TEST(OnnxImportTest, WhatDoesNotLeadToTheLossIsLeftOut) {
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
  Model old(9);
  old.Input("x", {0, 3}).Node("Relu", {"x"}, {"y"}).Output("y");
  EXPECT_TRUE(absl::StrContains(old.Import().status().message(), "is of opset 9; 13 to 21"));
}

TEST(OnnxFileTest, ExternalDataIsReadFromBesideTheFileAndNowhereElse) {
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

  bias.mutable_external_data(1)->set_value("8");
  file = OnnxFile::Open(model.Write("external/model.onnx"));
  EXPECT_TRUE(absl::StrContains(file->Floats(file->graph().initializer(1)).status().message(),
                                "which has 12"));
  bias.mutable_external_data(0)->set_value("../external/weights.bin");
  file = OnnxFile::Open(model.Write("external/model.onnx"));
  EXPECT_TRUE(absl::StrContains(file->Floats(file->graph().initializer(1)).status().message(),
                                "not beside the file"));
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
}  // namespace muster
