// VGG-16: configuration D, as torchvision.models.vgg16 initialises it.
//   Source: Simonyan & Zisserman, "Very deep convolutional networks for large-scale image
//   recognition", ICLR 2015, table 1.
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/graph/zoo/arguments.h"
#include "lib/graph/zoo/graph_builder.h"
#include "lib/graph/zoo/models.h"
#include "lib/status/status.h"

namespace muster::zoo {
namespace {

struct Block {
  int convolutions;
  int64_t widths;  // channels, as a multiple of the first block's
};

constexpr Block kBlocks[] = {{2, 1}, {2, 2}, {3, 4}, {3, 8}, {3, 8}};
constexpr int64_t kShrinkage = 32;  // factor by which five poolings shrink each side of the image

}  // namespace

absl::StatusOr<v1::Graph> BuildVgg16(const v1::ZooModel& model) {
  Arguments args(model);
  const int64_t image = args.Integer("image", 224, kSideMax);
  const int64_t classes = args.Integer("classes", 1000);
  const int64_t width = args.Integer("width", 64, kSideMax);
  const int64_t hidden = args.Integer("hidden", 4096);
  const double dropout = args.Rate("dropout", 0.5);
  if (image % kShrinkage != 0) {
    args.Refuse("image", absl::StrCat("must be a multiple of ", kShrinkage, " (is ", image, ")"));
  }
  RETURN_IF_ERROR(args.Verify());

  GraphBuilder graph("vgg16");
  std::string x = graph.Input("input", v1::DTYPE_F32, {3, image, image});
  const std::string target = graph.Input("target", v1::DTYPE_I32, {});
  int64_t channels = 3;
  int b = 0;
  for (const Block& block : kBlocks) {
    const std::string name = absl::StrCat("blocks.", b++, ".");
    const int64_t outputs = block.widths * width;
    for (int c = 0; c < block.convolutions; ++c) {
      const std::string layer = absl::StrCat(name, "conv", c);
      x = graph.Conv2d(layer, x,
                       {.inputs = channels,
                        .outputs = outputs,
                        .kernel = {3, 3},
                        .padding = {1, 1},
                        .weight = HeNormal(outputs * 9),
                        .bias = Constant(0)});
      x = graph.Apply("Relu", {x}, layer + ".relu");
      channels = outputs;
    }
    x = graph.MaxPool2d(name + "pool", x, {.kernel = 2, .stride = 2});
  }
  x = graph.Apply("Flatten", {x}, "flatten");

  const auto linear = [&](const std::string& layer, int64_t inputs, int64_t outputs,
                          const std::string& output) {
    return graph.Linear(
        layer, x,
        {.inputs = inputs, .outputs = outputs, .weight = Normal(0.01), .bias = Constant(0)},
        output);
  };
  const int64_t side = image / kShrinkage;
  x = linear("fc1", channels * side * side, hidden, "fc1");
  x = graph.Dropout(graph.Apply("Relu", {x}, "fc1.relu"), dropout);
  x = linear("fc2", hidden, hidden, "fc2");
  x = graph.Dropout(graph.Apply("Relu", {x}, "fc2.relu"), dropout);
  x = linear("fc3", hidden, classes, "logits");
  graph.Classify(x, target);
  return std::move(graph).Finish();
}

}  // namespace muster::zoo
