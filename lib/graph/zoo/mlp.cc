// A multilayer perceptron with ReLU.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/graph/zoo/arguments.h"
#include "lib/graph/zoo/graph_builder.h"
#include "lib/graph/zoo/models.h"
#include "lib/status/status.h"

namespace muster::zoo {

absl::StatusOr<v1::Graph> BuildMlp(const v1::ZooModel& model) {
  Arguments args(model);
  const int64_t channels = args.Integer("channels", 1, kSideMax);
  const int64_t height = args.Integer("height", 1, kSideMax);
  const int64_t width = args.Integer("width", 1, kSideMax);
  const bool is_image = args.Has("height");
  const int64_t pixels = channels * height * width;
  const int64_t inputs = args.Integer("inputs", is_image ? pixels : 784);
  const std::vector<int64_t> hidden = args.Integers("hidden", {256, 128});
  const int64_t classes = args.Integer("classes", 10);
  if (args.Has("width") != is_image) {
    args.Refuse(is_image ? "height" : "width",
                "must be given together with the other side of the image");
  } else if (args.Has("channels") && !is_image) {
    args.Refuse("channels", "is for images: height and width are missing");
  }
  if (is_image && inputs != pixels) {
    args.Refuse("inputs",
                absl::StrCat("is ", inputs, " but channels x height x width is ", pixels));
  }
  RETURN_IF_ERROR(args.Verify());

  GraphBuilder graph("mlp");
  std::string x = is_image ? graph.Input("input", v1::DTYPE_F32, {channels, height, width})
                           : graph.Input("input", v1::DTYPE_F32, {inputs});
  const std::string target = graph.Input("target", v1::DTYPE_I32, {});
  if (is_image) x = graph.Apply("Flatten", {x}, "flatten");
  int64_t inner = inputs;
  for (size_t i = 0; i < hidden.size(); ++i) {
    const std::string layer = absl::StrCat("layers.", i);
    x = graph.Linear(layer, x, {.inputs = inner, .outputs = hidden[i]});
    x = graph.Apply("Relu", {x}, layer + ".relu");
    inner = hidden[i];
  }
  x = graph.Linear(absl::StrCat("layers.", hidden.size()), x, {.inputs = inner, .outputs = classes},
                   "logits");
  graph.Classify(x, target);
  return std::move(graph).Finish();
}

}  // namespace muster::zoo
