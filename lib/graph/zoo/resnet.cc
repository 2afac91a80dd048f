// Residual networks of bottleneck blocks.
//   Source: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016, table 1
//   and figure 5 right.
//
// The variants differ in the place of the stride:
// - torchvision.models.resnet (version 1.5): in the 3x3 convolution.
// - keras.applications.resnet (the paper's): in the first 1x1; convolutions have a bias.
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
namespace {

constexpr int64_t kExpansion = 4;  // ratio of a block's outputs to the width of its 3x3 convolution
constexpr size_t kStagesMax = 8;   // widths double, so products stay far below 2^63

enum class Variant { kTorchvision, kKeras };

class Resnet {
 public:
  Resnet(const std::string& name, Variant variant, bool bias, bool synchronised)
      : graph_(name), variant_(variant), bias_(bias), synchronised_(synchronised) {}

  GraphBuilder& graph() { return graph_; }

  struct Convolution {
    int64_t inputs;
    int64_t outputs;
    int64_t kernel;
    int64_t stride = 1;
  };

  // A convolution and its batch norm.
  std::string ConvolutionAndNorm(const std::string& convolution, const std::string& norm,
                                 const std::string& x, const Convolution& options) {
    Conv2dOptions conv{.inputs = options.inputs,
                       .outputs = options.outputs,
                       .kernel = {options.kernel, options.kernel},
                       .strides = {options.stride, options.stride},
                       .padding = {options.kernel / 2, options.kernel / 2},
                       .weight = HeNormal(options.outputs * options.kernel * options.kernel),
                       .bias = std::nullopt};
    if (bias_) conv.bias = Constant(0);
    return graph_.BatchNorm(norm, graph_.Conv2d(convolution, x, conv),
                            {.channels = options.outputs,
                             .epsilon = variant_ == Variant::kKeras ? 1.001e-5 : 1e-5,
                             .synchronised = synchronised_});
  }

  std::string Bottleneck(const std::string& name, const std::string& x, int64_t inputs,
                         int64_t width, int64_t stride) {
    const bool is_first = variant_ == Variant::kKeras;  // whether the stride is in the first 1x1
    const int64_t outputs = kExpansion * width;
    std::string y =
        ConvolutionAndNorm(name + "conv1", name + "bn1", x,
                           {inputs, width, /*kernel=*/1, /*stride=*/is_first ? stride : 1});
    y = graph_.Apply("Relu", {y}, name + "relu1");
    y = ConvolutionAndNorm(name + "conv2", name + "bn2", y,
                           {width, width, /*kernel=*/3, /*stride=*/is_first ? 1 : stride});
    y = graph_.Apply("Relu", {y}, name + "relu2");
    y = ConvolutionAndNorm(name + "conv3", name + "bn3", y, {width, outputs, /*kernel=*/1});
    std::string shortcut = x;
    if (stride != 1 || inputs != outputs) {
      shortcut = ConvolutionAndNorm(name + "downsample.0", name + "downsample.1", x,
                                    {inputs, outputs, /*kernel=*/1, stride});
    }
    y = graph_.Apply("Add", {y, shortcut}, name + "residual");
    return graph_.Apply("Relu", {y}, name + "relu3");
  }

 private:
  GraphBuilder graph_;
  const Variant variant_;
  const bool bias_;
  const bool synchronised_;
};

absl::StatusOr<v1::Graph> Build(const v1::ZooModel& model, std::vector<int64_t> default_blocks) {
  Arguments args(model);
  const int64_t image = args.Integer("image", 224, kSideMax);
  const int64_t classes = args.Integer("classes", 1000);
  const std::vector<int64_t> blocks = args.Integers("blocks", std::move(default_blocks));
  const int64_t width = args.Integer("width", 64, kSideMax);
  const Variant variant = Variant{args.Choice("variant", {"torchvision", "keras"})};
  const bool bias = args.Boolean("bias", variant == Variant::kKeras);
  const bool synchronised = args.Boolean("synchronised", false);
  if (blocks.empty() || blocks.size() > kStagesMax) {
    args.Refuse("blocks", absl::StrCat("must have from 1 to ", kStagesMax, " stages"));
  }
  for (const int64_t count : blocks) {
    if (count > kLayersMax)
      args.Refuse("blocks", absl::StrCat("has a stage of more than ", kLayersMax));
  }
  RETURN_IF_ERROR(args.Verify());

  Resnet resnet(model.name(), variant, bias, synchronised);
  GraphBuilder& graph = resnet.graph();
  std::string x = graph.Input("input", v1::DTYPE_F32, {3, image, image});
  const std::string target = graph.Input("target", v1::DTYPE_I32, {});
  x = resnet.ConvolutionAndNorm("conv1", "bn1", x,
                                {/*inputs=*/3, width, /*kernel=*/7, /*stride=*/2});
  x = graph.Apply("Relu", {x}, "relu");
  x = graph.MaxPool2d("maxpool", x, {.kernel = 3, .stride = 2, .padding = 1});
  int64_t channels = width;
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    const int64_t stage_width = width << stage;
    for (int64_t b = 0; b < blocks[stage]; ++b) {
      x = resnet.Bottleneck(absl::StrCat("layer", stage + 1, ".", b, "."), x, channels, stage_width,
                            /*stride=*/b == 0 && stage > 0 ? 2 : 1);
      channels = kExpansion * stage_width;
    }
  }
  x = graph.Apply("GlobalAveragePool2d", {x}, "avgpool");
  x = graph.Linear("fc", x, {.inputs = channels, .outputs = classes}, "logits");
  graph.Classify(x, target);
  return std::move(graph).Finish();
}

}  // namespace

absl::StatusOr<v1::Graph> BuildResnet50(const v1::ZooModel& model) {
  return Build(model, {3, 4, 6, 3});
}

absl::StatusOr<v1::Graph> BuildResnet101(const v1::ZooModel& model) {
  return Build(model, {3, 4, 23, 3});
}

}  // namespace muster::zoo
