#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/graph/attributes.h"
#include "lib/graph/operators/families.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr double kWindowMax =
    1 << 20;  // larger than every image; window arithmetic stays far from overflow

constexpr absl::string_view kSides[] = {"height", "width"};

enum class Rounding { kFloor, kCeil };

absl::Status RelateWindow(const Window& window, Rounding rounding, Dimensions& dimensions) {
  for (int side = 0; side < 2; ++side) {
    const int64_t before = window.padding_before[side];
    const int64_t size = dimensions[kSides[side]];
    const int64_t padded = before + size + window.padding_after[side];
    const int64_t kernel = (window.kernel[side] - 1) * window.dilations[side] + 1;
    const int64_t stride = window.strides[side];
    if (kernel > padded) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a kernel of ", kernel, " does not fit into the padded ", kSides[side], " of ", padded));
    }
    int64_t outputs = (padded - kernel) / stride + 1;
    // A window counts only if it starts inside the image or the padding before it.
    if (rounding == Rounding::kCeil && (padded - kernel) % stride != 0 &&
        outputs * stride < before + size) {
      ++outputs;
    }
    RETURN_IF_ERROR(dimensions.Bind(absl::StrCat("output ", kSides[side]), outputs));
  }
  return absl::OkStatus();
}

absl::Status RelateConvolution(const v1::Node& node, Dimensions& dimensions) {
  const int64_t groups = IntegerAttribute(node, "groups");
  if (dimensions["channel"] != groups * dimensions["group channel"]) {
    return absl::InvalidArgumentError(absl::StrCat("w has ", dimensions["group channel"],
                                                   " input channels for ", dimensions["channel"],
                                                   " channels in ", groups, " groups"));
  }
  if (dimensions["output channel"] % groups != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        groups, " groups do not divide ", dimensions["output channel"], " output channels"));
  }
  const int64_t weight_shape[] = {dimensions["output channel"], dimensions["group channel"],
                                  dimensions["kernel height"], dimensions["kernel width"]};
  return RelateWindow(ConvolutionWindow(node, weight_shape), Rounding::kFloor, dimensions);
}

// A transposed convolution runs a convolution backwards, from its output to its image y. So y has
// the size that the window needs.
absl::Status RelateTransposedConvolution(const v1::Node& node, Dimensions& dimensions) {
  const int64_t groups = IntegerAttribute(node, "groups");
  if (dimensions["channel"] % groups != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(groups, " groups do not divide ", dimensions["channel"], " channels"));
  }
  RETURN_IF_ERROR(dimensions.Bind("output channel", groups * dimensions["group output"]));
  const int64_t weight_shape[] = {dimensions["channel"], dimensions["group output"],
                                  dimensions["kernel height"], dimensions["kernel width"]};
  const Window window = ConvolutionWindow(node, weight_shape);
  const std::vector<int64_t> more = IntegersAttribute(node, "output_padding");
  for (int side = 0; side < 2; ++side) {
    // A larger output padding would be another position of the window.
    if (more[side] >= window.strides[side]) {
      return absl::InvalidArgumentError(absl::StrCat("an output padding of ", more[side],
                                                     " is not below the stride of ",
                                                     window.strides[side]));
    }
    const int64_t kernel = (window.kernel[side] - 1) * window.dilations[side] + 1;
    const int64_t padding = window.padding_before[side] + window.padding_after[side];
    const int64_t whole =
        (dimensions[kSides[side]] - 1) * window.strides[side] + kernel + more[side];
    if (padding >= whole) {
      return absl::InvalidArgumentError(absl::StrCat("a padding of ", padding,
                                                     " removes a whole output ", kSides[side],
                                                     " of ", whole, "; the limit is ", whole - 1));
    }
    RETURN_IF_ERROR(dimensions.Bind(absl::StrCat("output ", kSides[side]), whole - padding));
  }
  return absl::OkStatus();
}

// Returns whether every window covers at least one row or column of the image.
bool SeesTheImage(const Window& window, int side, int64_t size, int64_t outputs) {
  for (int64_t i = 0; i < outputs; ++i) {
    const int64_t first = i * window.strides[side] - window.padding_before[side];
    const int64_t skipped =
        first >= 0 ? 0 : (window.dilations[side] - 1 - first) / window.dilations[side];
    if (skipped >= window.kernel[side]) return false;
    if (first + skipped * window.dilations[side] >= size) return false;
    if (first >= 0) break;  // later windows also begin inside
  }
  return true;
}

absl::Status RelatePooling(const v1::Node& node, Dimensions& dimensions) {
  const Window window = PoolingWindow(node);
  const auto sees_padding = [&](int side) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a kernel ", kSides[side], " of ", window.kernel[side], " would see nothing but padding"));
  };
  for (int side = 0; side < 2; ++side) {
    const int64_t extent = (window.kernel[side] - 1) * window.dilations[side] + 1;
    if (std::max(window.padding_before[side], window.padding_after[side]) >= extent) {
      return sees_padding(side);
    }
  }
  RETURN_IF_ERROR(
      RelateWindow(window, IntegerAttribute(node, "ceil") != 0 ? Rounding::kCeil : Rounding::kFloor,
                   dimensions));
  for (int side = 0; side < 2; ++side) {
    if (!SeesTheImage(window, side, dimensions[kSides[side]],
                      dimensions[absl::StrCat("output ", kSides[side])])) {
      return sees_padding(side);
    }
  }
  return absl::OkStatus();
}

// Checks MaxPool2d. The size of a window is limited, because the state stores the winning position
// of each window in 16 bits.
absl::Status RelateMaxPooling(const v1::Node& node, Dimensions& dimensions) {
  constexpr int64_t kPositionsMax = 65535;
  const Window window = PoolingWindow(node);
  const int64_t positions = window.kernel[0] * window.kernel[1];
  if (positions > kPositionsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a window of ", window.kernel[0], " x ", window.kernel[1], " has ", positions,
        " positions, at most ", kPositionsMax, " are possible: take the maximum in two steps"));
  }
  return RelatePooling(node, dimensions);
}

constexpr const char* kImage = "x T[batch, channel, height, width]";
constexpr const char* kImageShape = "x(shape) T[batch, channel, height, width]";
constexpr const char* kWeight = "w T[output channel, group channel, kernel height, kernel width]";
constexpr const char* kConvolved = "y T[batch, output channel, output height, output width]";
constexpr const char* kConvolvedGradient =
    "dy T[batch, output channel, output height, output width]";
constexpr const char* kPooled = "y T[batch, channel, output height, output width]";
constexpr const char* kPooledGradient = "dy T[batch, channel, output height, output width]";
constexpr const char* kImageGradient = "dx T[batch, channel, height, width]";

std::vector<AttributeRule> ConvolutionAttributes() {
  return {Integers("strides").Default({1, 1}).Length(2).Within(1, kWindowMax),
          Integers("padding").Default({0, 0, 0, 0}).Length(4).Within(0, kWindowMax),
          Integers("dilations").Default({1, 1}).Length(2).Within(1, kWindowMax),
          Integer("groups").Default(1).Within(1, kWindowMax)};
}

std::vector<AttributeRule> TransposedConvolutionAttributes() {
  std::vector<AttributeRule> attributes = ConvolutionAttributes();
  attributes.push_back(Integers("output_padding").Default({0, 0}).Length(2).Within(0, kWindowMax));
  return attributes;
}

std::vector<AttributeRule> PoolingAttributes() {
  return {Integers("kernel").Length(2).Within(1, kWindowMax),
          Integers("strides").DefaultOf("kernel").Length(2).Within(1, kWindowMax),
          Integers("padding").Default({0, 0, 0, 0}).Length(4).Within(0, kWindowMax),
          Integer("ceil").Default(0).Within(0, 1)};
}

std::vector<AttributeRule> MaxPoolingAttributes() {
  std::vector<AttributeRule> attributes = PoolingAttributes();
  attributes.push_back(Integers("dilations").Default({1, 1}).Length(2).Within(1, kWindowMax));
  return attributes;
}

std::vector<AttributeRule> AveragePoolingAttributes() {
  std::vector<AttributeRule> attributes = PoolingAttributes();
  attributes.push_back(Integer("count_padding").Default(0).Within(0, 1));
  return attributes;
}

}  // namespace

std::vector<Operator> ImageOperators() {
  return {
      {.name = "Conv2d",
       .inputs = {kImage, kWeight, "bias? T[output channel]"},
       .outputs = {kConvolved},
       .attributes = ConvolutionAttributes(),
       .relate = RelateConvolution,
       .gradients = {{"Conv2dGradBias", {"dy"}, {"bias"}},
                     {"Conv2dGradWeight", {"dy", "x", "w"}, {"w"}},
                     {"Conv2dGradInput", {"dy", "w", "x"}, {"x"}}}},
      {.name = "Conv2dGradInput",
       .inputs = {kConvolvedGradient, kWeight, kImageShape},
       .outputs = {kImageGradient},
       .attributes = ConvolutionAttributes(),
       .relate = RelateConvolution},
      {.name = "Conv2dGradWeight",
       .inputs = {kConvolvedGradient, kImage,
                  "w(shape) T[output channel, group channel, kernel height, kernel width]"},
       .outputs = {"dw T[output channel, group channel, kernel height, kernel width]"},
       .attributes = ConvolutionAttributes(),
       .relate = RelateConvolution},
      {.name = "Conv2dGradBias",
       .inputs = {kConvolvedGradient},
       .outputs = {"db T[output channel]"},
       .attributes = ConvolutionAttributes()},
      // Its gradients are those of the convolution that it runs backwards, with x and dy swapped.
      {.name = "ConvTranspose2d",
       .inputs = {kImage, "w T[channel, group output, kernel height, kernel width]",
                  "bias? T[output channel]"},
       .outputs = {kConvolved},
       .attributes = TransposedConvolutionAttributes(),
       .relate = RelateTransposedConvolution,
       .gradients = {{"Conv2dGradBias", {"dy"}, {"bias"}},
                     {"Conv2dGradWeight", {"x", "dy", "w"}, {"w"}},
                     {"Conv2d", {"dy", "w"}, {"x"}}}},

      {.name = "MaxPool2d",
       .inputs = {kImage},
       .outputs = {kPooled, "state state"},
       .attributes = MaxPoolingAttributes(),
       .relate = RelateMaxPooling,
       .gradients = {{"MaxPool2dGrad", {"dy", "x", "y", "state"}, {"x"}}}},
      {.name = "MaxPool2dGrad",
       .inputs = {kPooledGradient, kImage, kPooled, "state state"},
       .outputs = {kImageGradient},
       .attributes = MaxPoolingAttributes(),
       .relate = RelateMaxPooling},
      {.name = "AveragePool2d",
       .inputs = {kImage},
       .outputs = {kPooled},
       .attributes = AveragePoolingAttributes(),
       .relate = RelatePooling,
       .gradients = {{"AveragePool2dGrad", {"dy", "x"}, {"x"}}}},
      {.name = "AveragePool2dGrad",
       .inputs = {kPooledGradient, kImageShape},
       .outputs = {kImageGradient},
       .attributes = AveragePoolingAttributes(),
       .relate = RelatePooling},
      {.name = "GlobalAveragePool2d",
       .inputs = {kImage},
       .outputs = {"y T[batch, channel]"},
       .gradients = {{"GlobalAveragePool2dGrad", {"dy", "x"}, {"x"}}}},
      {.name = "GlobalAveragePool2dGrad",
       .inputs = {"dy T[batch, channel]", kImageShape},
       .outputs = {kImageGradient}},
  };
}

}  // namespace muster
