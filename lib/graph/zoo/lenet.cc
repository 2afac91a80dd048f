// LeNet-5 with ReLU for tanh and max pooling for trained subsampling.
//   Source: LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document
//   recognition", Proc. IEEE 86(11), 1998, figure 2.
#include <cstdint>
#include <string>
#include <utility>

#include "lib/graph/zoo/arguments.h"
#include "lib/graph/zoo/graph_builder.h"
#include "lib/graph/zoo/models.h"
#include "lib/status/status.h"

namespace muster::zoo {

absl::StatusOr<v1::Graph> BuildLenet(const v1::ZooModel& model) {
  Arguments args(model);
  const int64_t classes = args.Integer("classes", 10);
  RETURN_IF_ERROR(args.Verify());

  GraphBuilder graph("lenet");
  std::string x = graph.Input("input", v1::DTYPE_F32, {1, 28, 28});
  const std::string target = graph.Input("target", v1::DTYPE_I32, {});
  x = graph.Conv2d("conv1", x, {.inputs = 1, .outputs = 6, .kernel = {5, 5}, .padding = {2, 2}});
  x = graph.Apply("Relu", {x}, "conv1.relu");
  x = graph.MaxPool2d("pool1", x, {.kernel = 2, .stride = 2});
  x = graph.Conv2d("conv2", x, {.inputs = 6, .outputs = 16, .kernel = {5, 5}});
  x = graph.Apply("Relu", {x}, "conv2.relu");
  x = graph.MaxPool2d("pool2", x, {.kernel = 2, .stride = 2});
  x = graph.Apply("Flatten", {x}, "flatten");
  x = graph.Linear("fc1", x, {.inputs = 400, .outputs = 120});
  x = graph.Apply("Relu", {x}, "fc1.relu");
  x = graph.Linear("fc2", x, {.inputs = 120, .outputs = 84});
  x = graph.Apply("Relu", {x}, "fc2.relu");
  x = graph.Linear("fc3", x, {.inputs = 84, .outputs = classes}, "logits");
  graph.Classify(x, target);
  return std::move(graph).Finish();
}

}  // namespace muster::zoo
