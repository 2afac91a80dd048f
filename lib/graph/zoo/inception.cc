// Inception-V3 without the auxiliary classifier, as keras.applications.inception_v3: batch norms
// without a gain, average pools that do not count their padding.
//   Source: Szegedy, Vanhoucke, Ioffe, Shlens, Wojna, "Rethinking the inception architecture for
//   computer vision", CVPR 2016, table 1 and figures 5 to 7.
#include <array>
#include <cstdint>
#include <optional>
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

constexpr int64_t kShrinkMax = 16;  // every width is a multiple of it
constexpr int64_t kImageMin = 75;   // the smallest image with one pixel left at the last pooling

// A tensor and its channels.
struct Features {
  std::string tensor;
  int64_t channels;
};

enum class Padding { kSame, kValid };

struct Layer {
  int64_t outputs;
  std::array<int64_t, 2> kernel;
  int64_t stride = 1;
  Padding padding = Padding::kSame;
};

class Inception {
 public:
  struct Options {
    int64_t shrink;
    bool gain;
    bool synchronised;
  };

  explicit Inception(const Options& options) : graph_("inception_v3"), options_(options) {}

  GraphBuilder& graph() { return graph_; }

  // Appends a convolution, a batch norm and a ReLU.
  Features Apply(const std::string& name, const Features& x, const Layer& layer) {
    const int64_t outputs = layer.outputs / options_.shrink;
    const auto [height, width] = layer.kernel;
    const int64_t pixels = height * width;
    Conv2dOptions conv{.inputs = x.channels,
                       .outputs = outputs,
                       .kernel = layer.kernel,
                       .strides = {layer.stride, layer.stride},
                       .weight = GlorotUniform(pixels * x.channels, pixels * outputs),
                       .bias = std::nullopt};
    if (layer.padding == Padding::kSame) conv.padding = {height / 2, width / 2};
    const std::string y =
        graph_.BatchNorm(name + ".bn", graph_.Conv2d(name + ".conv", x.tensor, conv),
                         {.channels = outputs,
                          .epsilon = 1e-3,
                          .gain = options_.gain,
                          .synchronised = options_.synchronised});
    return {graph_.Apply("Relu", {y}, name + ".relu"), outputs};
  }

  Features Branch(const std::string& name, Features x, const std::vector<Layer>& layers) {
    for (size_t i = 0; i < layers.size(); ++i) x = Apply(absl::StrCat(name, ".", i), x, layers[i]);
    return x;
  }

  Features AveragePool(const std::string& name, const Features& x) {
    return {graph_.Apply("AveragePool2d", {x.tensor}, name,
                         {{"kernel", Integers{3, 3}},
                          {"strides", Integers{1, 1}},
                          {"padding", Integers{1, 1, 1, 1}}}),
            x.channels};
  }

  Features MaxPool(const std::string& name, const Features& x) {
    return {graph_.MaxPool2d(name, x.tensor, {.kernel = 3, .stride = 2}), x.channels};
  }

  Features Concat(const std::string& name, const std::vector<Features>& parts) {
    std::vector<std::string> tensors;
    int64_t channels = 0;
    for (const Features& part : parts) {
      tensors.push_back(part.tensor);
      channels += part.channels;
    }
    return {graph_.Apply("Concat", tensors, name, {{"axis", 1}}), channels};
  }

  // Builds figure 5: 5x5 as two 3x3.
  Features BlockA(const std::string& name, const Features& x, int64_t pool_outputs) {
    return Concat(
        name + "concat",
        {Branch(name + "branch1x1", x, {{64, {1, 1}}}),
         Branch(name + "branch5x5", x, {{48, {1, 1}}, {64, {5, 5}}}),
         Branch(name + "branch3x3", x, {{64, {1, 1}}, {96, {3, 3}}, {96, {3, 3}}}),
         Branch(name + "branch_pool", AveragePool(name + "pool", x), {{pool_outputs, {1, 1}}})});
  }

  Features ReductionA(const std::string& name, const Features& x) {
    return Concat(name + "concat",
                  {Branch(name + "branch3x3", x, {{384, {3, 3}, 2, Padding::kValid}}),
                   Branch(name + "branch3x3_double", x,
                          {{64, {1, 1}}, {96, {3, 3}}, {96, {3, 3}, 2, Padding::kValid}}),
                   MaxPool(name + "pool", x)});
  }

  // Builds figure 6: 7x7 as 1x7 and 7x1.
  Features BlockB(const std::string& name, const Features& x, int64_t width) {
    return Concat(
        name + "concat",
        {Branch(name + "branch1x1", x, {{192, {1, 1}}}),
         Branch(name + "branch7x7", x, {{width, {1, 1}}, {width, {1, 7}}, {192, {7, 1}}}),
         Branch(
             name + "branch7x7_double", x,
             {{width, {1, 1}}, {width, {7, 1}}, {width, {1, 7}}, {width, {7, 1}}, {192, {1, 7}}}),
         Branch(name + "branch_pool", AveragePool(name + "pool", x), {{192, {1, 1}}})});
  }

  Features ReductionB(const std::string& name, const Features& x) {
    return Concat(
        name + "concat",
        {Branch(name + "branch3x3", x, {{192, {1, 1}}, {320, {3, 3}, 2, Padding::kValid}}),
         Branch(name + "branch7x7", x,
                {{192, {1, 1}}, {192, {1, 7}}, {192, {7, 1}}, {192, {3, 3}, 2, Padding::kValid}}),
         MaxPool(name + "pool", x)});
  }

  // Builds figure 7: branches that fork into 1x3 and 3x1.
  Features BlockC(const std::string& name, const Features& x) {
    const Features single = Branch(name + "branch3x3", x, {{384, {1, 1}}});
    const Features twice = Branch(name + "branch3x3_double", x, {{448, {1, 1}}, {384, {3, 3}}});
    return Concat(name + "concat",
                  {Branch(name + "branch1x1", x, {{320, {1, 1}}}),
                   Apply(name + "branch3x3_wide", single, {384, {1, 3}}),
                   Apply(name + "branch3x3_tall", single, {384, {3, 1}}),
                   Apply(name + "branch3x3_double_wide", twice, {384, {1, 3}}),
                   Apply(name + "branch3x3_double_tall", twice, {384, {3, 1}}),
                   Branch(name + "branch_pool", AveragePool(name + "pool", x), {{192, {1, 1}}})});
  }

 private:
  GraphBuilder graph_;
  const Options options_;
};

}  // namespace

absl::StatusOr<v1::Graph> BuildInceptionV3(const v1::ZooModel& model) {
  Arguments args(model);
  const int64_t image = args.Integer("image", 299, kSideMax);
  const int64_t classes = args.Integer("classes", 1000);
  const int64_t shrink = args.Integer("shrink", 1, kShrinkMax);
  const bool gain = args.Boolean("gain", false);
  const double label_smoothing = args.Rate("label_smoothing", 0.1);
  const bool synchronised = args.Boolean("synchronised", false);
  if (image < kImageMin) {
    args.Refuse("image", absl::StrCat("must be at least ", kImageMin, " (is ", image, ")"));
  }
  args.RequireDivides("shrink", shrink, "the common factor of all widths", kShrinkMax);
  RETURN_IF_ERROR(args.Verify());

  Inception inception({.shrink = shrink, .gain = gain, .synchronised = synchronised});
  GraphBuilder& graph = inception.graph();
  Features x = {graph.Input("input", v1::DTYPE_F32, {3, image, image}), 3};
  const std::string target = graph.Input("target", v1::DTYPE_I32, {});
  x = inception.Apply("stem.0", x, {32, {3, 3}, 2, Padding::kValid});
  x = inception.Apply("stem.1", x, {32, {3, 3}, 1, Padding::kValid});
  x = inception.Apply("stem.2", x, {64, {3, 3}});
  x = inception.MaxPool("stem.pool1", x);
  x = inception.Apply("stem.3", x, {80, {1, 1}, 1, Padding::kValid});
  x = inception.Apply("stem.4", x, {192, {3, 3}, 1, Padding::kValid});
  x = inception.MaxPool("stem.pool2", x);
  x = inception.BlockA("blocks.0.", x, 32);
  x = inception.BlockA("blocks.1.", x, 64);
  x = inception.BlockA("blocks.2.", x, 64);
  x = inception.ReductionA("blocks.3.", x);
  x = inception.BlockB("blocks.4.", x, 128);
  x = inception.BlockB("blocks.5.", x, 160);
  x = inception.BlockB("blocks.6.", x, 160);
  x = inception.BlockB("blocks.7.", x, 192);
  x = inception.ReductionB("blocks.8.", x);
  x = inception.BlockC("blocks.9.", x);
  x = inception.BlockC("blocks.10.", x);
  const std::string pooled = graph.Apply("GlobalAveragePool2d", {x.tensor}, "pool");
  const std::string logits = graph.Linear("fc", pooled,
                                          {.inputs = x.channels,
                                           .outputs = classes,
                                           .weight = GlorotUniform(x.channels, classes),
                                           .bias = Constant(0)},
                                          "logits");
  graph.Classify(logits, target, label_smoothing);
  return std::move(graph).Finish();
}

}  // namespace muster::zoo
