// Builds small ONNX files for tests.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "proto/third_party/onnx/onnx.pb.h"

namespace muster {

class OnnxModelBuilder {
 public:
  explicit OnnxModelBuilder(int64_t opset = 17) {
    proto_.set_ir_version(8);
    proto_.add_opset_import()->set_version(opset);
  }

  // Adds an input. A dimension of 0 is the batch, which the file leaves open. A dimension of -1 is
  // another open one.
  OnnxModelBuilder& Input(const std::string& name, std::vector<int64_t> shape,
                          int32_t type = onnx::TensorProto::FLOAT);
  OnnxModelBuilder& Output(const std::string& name);

  // The elements are 0.25, 0.5, 0.75, ...
  OnnxModelBuilder& Weight(const std::string& name, std::vector<int64_t> shape);
  OnnxModelBuilder& Filled(const std::string& name, std::vector<int64_t> shape, float value);

  OnnxModelBuilder& Integers(const std::string& name, std::vector<int64_t> values);

  // The node is called "the OP". A list of one is also an integer.
  OnnxModelBuilder& Node(const std::string& op, std::vector<std::string> inputs,
                         std::vector<std::string> outputs,
                         std::vector<std::pair<std::string, std::vector<int64_t>>> attributes = {});

  onnx::ModelProto& proto() { return proto_; }

  // Writes the file into the test's folder. Returns its path.
  std::string Write(const std::string& name) const;

 private:
  onnx::ModelProto proto_;
};

}  // namespace muster
