#include "lib/engine/verification/sketch.h"

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::verification {

SketchAttribute::SketchAttribute(std::string name, int i) : name(std::move(name)) {
  value.set_i(i);
}

SketchAttribute::SketchAttribute(std::string name, double f) : name(std::move(name)) {
  value.set_f(f);
}

SketchAttribute::SketchAttribute(std::string name, const char* s) : name(std::move(name)) {
  value.set_s(s);
}

SketchAttribute::SketchAttribute(std::string name, std::initializer_list<int> values)
    : SketchAttribute(std::move(name), std::vector<int64_t>(values.begin(), values.end())) {}

SketchAttribute::SketchAttribute(std::string name, std::initializer_list<double> values)
    : SketchAttribute(std::move(name), std::vector<double>(values)) {}

SketchAttribute::SketchAttribute(std::string name, const std::vector<double>& values)
    : name(std::move(name)) {
  value.mutable_numbers()->mutable_values()->Add(values.begin(), values.end());
}

SketchAttribute::SketchAttribute(std::string name, const std::vector<int64_t>& values)
    : name(std::move(name)) {
  value.mutable_integers()->mutable_values()->Add(values.begin(), values.end());
}

std::string Sketch::Input(std::string name, std::vector<int64_t> sample, v1::DType dtype) {
  v1::GraphInput& input = *graph.add_inputs();
  input.set_name(name);
  input.set_dtype(dtype);
  input.add_shape(-1);
  input.mutable_shape()->Add(sample.begin(), sample.end());
  return name;
}

std::string Sketch::Ids(std::string name, std::vector<int64_t> sample) {
  return Input(std::move(name), std::move(sample), v1::DTYPE_I32);
}

std::string Sketch::Parameter(std::string name, std::vector<int64_t> shape, double scale) {
  v1::Parameter& parameter = *graph.add_parameters();
  parameter.set_name(name);
  parameter.mutable_shape()->Add(shape.begin(), shape.end());
  parameter.mutable_initializer()->set_normal(scale);
  return name;
}

std::string Sketch::Statistic(std::string name, std::vector<int64_t> shape) {
  Parameter(name, std::move(shape));
  v1::Parameter& parameter = *graph.mutable_parameters(graph.parameters_size() - 1);
  parameter.mutable_initializer()->set_constant(1);
  parameter.set_statistic_momentum(0.1);
  return name;
}

std::string Sketch::Add(std::string name, std::string op, std::vector<std::string> inputs,
                        SketchAttributes attributes, int outputs) {
  v1::Node& node = *graph.add_nodes();
  node.set_name(name);
  node.set_op(std::move(op));
  for (std::string& input : inputs) node.add_inputs(std::move(input));
  node.add_outputs(name);
  for (int i = 1; i < outputs; ++i) node.add_outputs(absl::StrCat(name, ".", i));
  for (SketchAttribute& attribute : attributes) {
    (*node.mutable_attributes())[attribute.name] = std::move(attribute.value);
  }
  return name;
}

std::string Sketch::Loss(std::string op, std::string output, std::string target,
                         SketchAttributes attributes) {
  const int outputs = op == "SoftmaxCrossEntropy" ? 2 : 1;
  const std::string name = absl::StrCat("loss of ", output);
  graph.set_loss(Add(name, std::move(op), {std::move(output), std::move(target)},
                     std::move(attributes), outputs));
  return graph.loss();
}

}  // namespace muster::verification
