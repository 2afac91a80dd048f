#include "lib/graph/onnx/onnx_model_builder.h"

#include <fstream>

#include "gtest/gtest.h"

namespace muster {
namespace {

using onnx::AttributeProto;
using onnx::TensorProto;

void Describe(onnx::ValueInfoProto& value, const std::string& name,
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

TensorProto& AddTensor(onnx::ModelProto& model, const std::string& name,
                       const std::vector<int64_t>& shape, int32_t type) {
  TensorProto& tensor = *model.mutable_graph()->add_initializer();
  tensor.set_name(name);
  tensor.set_data_type(type);
  tensor.mutable_dims()->Add(shape.begin(), shape.end());
  return tensor;
}

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (int64_t size : shape) elements *= size;
  return elements;
}

}  // namespace

OnnxModelBuilder& OnnxModelBuilder::Input(const std::string& name, std::vector<int64_t> shape,
                                          int32_t type) {
  Describe(*proto_.mutable_graph()->add_input(), name, shape, type);
  return *this;
}

OnnxModelBuilder& OnnxModelBuilder::Output(const std::string& name) {
  Describe(*proto_.mutable_graph()->add_output(), name, {0}, TensorProto::FLOAT);
  return *this;
}

OnnxModelBuilder& OnnxModelBuilder::Weight(const std::string& name, std::vector<int64_t> shape) {
  TensorProto& tensor = AddTensor(proto_, name, shape, TensorProto::FLOAT);
  for (int64_t i = 0; i < Elements(shape); ++i) tensor.add_float_data(0.25f * (i + 1));
  return *this;
}

OnnxModelBuilder& OnnxModelBuilder::Filled(const std::string& name, std::vector<int64_t> shape,
                                           float value) {
  TensorProto& tensor = AddTensor(proto_, name, shape, TensorProto::FLOAT);
  for (int64_t i = 0; i < Elements(shape); ++i) tensor.add_float_data(value);
  return *this;
}

OnnxModelBuilder& OnnxModelBuilder::Integers(const std::string& name, std::vector<int64_t> values) {
  TensorProto& tensor = AddTensor(proto_, name, {std::ssize(values)}, TensorProto::INT64);
  for (int64_t value : values) tensor.add_int64_data(value);
  return *this;
}

OnnxModelBuilder& OnnxModelBuilder::Node(
    const std::string& op, std::vector<std::string> inputs, std::vector<std::string> outputs,
    std::vector<std::pair<std::string, std::vector<int64_t>>> attributes) {
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

std::string OnnxModelBuilder::Write(const std::string& name) const {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream stream(path, std::ios::binary);
  EXPECT_TRUE(proto_.SerializeToOstream(&stream));
  return path;
}

}  // namespace muster
