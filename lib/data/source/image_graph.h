// A model of images for tests of data sources.
#pragma once

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// The model reads "input" f32[-1, 3, 2, 2] and "target" i32[-1] below `classes`.
inline v1::Graph ImageGraph(int64_t classes) {
  v1::Graph graph;
  v1::GraphInput& input = *graph.add_inputs();
  input.set_name("input");
  input.set_dtype(v1::DTYPE_F32);
  for (const int64_t size : {-1, 3, 2, 2}) input.add_shape(size);
  v1::GraphInput& target = *graph.add_inputs();
  target.set_name("target");
  target.set_dtype(v1::DTYPE_I32);
  target.add_shape(-1);
  v1::Parameter& head = *graph.add_parameters();
  head.set_name("head");
  head.add_shape(classes);
  head.add_shape(12);
  const auto add = [&](const char* op, std::initializer_list<const char*> inputs,
                       std::initializer_list<const char*> outputs) {
    v1::Node& node = *graph.add_nodes();
    node.set_name(*outputs.begin());
    node.set_op(op);
    for (const char* name : inputs) node.add_inputs(name);
    for (const char* name : outputs) node.add_outputs(name);
  };
  add("Flatten", {"input"}, {"x"});
  add("Linear", {"x", "head"}, {"logits"});
  add("SoftmaxCrossEntropy", {"logits", "target"}, {"loss", "lse"});
  graph.set_loss("loss");
  return graph;
}

}  // namespace muster
