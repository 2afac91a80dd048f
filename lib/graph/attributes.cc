#include "lib/graph/attributes.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "glog/logging.h"
#include "lib/graph/operator.h"

namespace muster {
namespace {

const AttributeRule& FindRule(const v1::Node& node, absl::string_view name,
                              v1::Attribute::ValueCase kind) {
  const Operator* op = FindOperator(node.op());
  CHECK(op != nullptr) << node.op();
  auto rule = std::ranges::find(op->attributes, name, &AttributeRule::name);
  CHECK(rule != op->attributes.end() && rule->kind == kind) << node.op() << " has no such " << name;
  return *rule;
}

// Returns the value that the node sets, or null if it sets none.
const v1::Attribute* Find(const v1::Node& node, absl::string_view name) {
  auto found = node.attributes().find(std::string(name));
  return found == node.attributes().end() ? nullptr : &found->second;
}

const AttributeRule& DefaultRule(const v1::Node& node, absl::string_view name,
                                 v1::Attribute::ValueCase kind) {
  const AttributeRule& rule = FindRule(node, name, kind);
  CHECK(rule.absence == AttributeRule::Absence::kDefault)
      << "node '" << node.name() << "' (" << node.op() << ") without " << name;
  return rule;
}

std::array<int64_t, 2> Pair(const std::vector<int64_t>& values) { return {values[0], values[1]}; }

void SetPadding(const v1::Node& node, Window& window) {
  const std::vector<int64_t> padding = IntegersAttribute(node, "padding");
  window.padding_before = {padding[0], padding[1]};
  window.padding_after = {padding[2], padding[3]};
}

}  // namespace

bool HasAttribute(const v1::Node& node, absl::string_view name) {
  return Find(node, name) != nullptr;
}

int64_t IntegerAttribute(const v1::Node& node, absl::string_view name) {
  const v1::Attribute* own = Find(node, name);
  if (own != nullptr) return own->i();
  return DefaultRule(node, name, v1::Attribute::kI).values.front();
}

double NumberAttribute(const v1::Node& node, absl::string_view name) {
  const v1::Attribute* own = Find(node, name);
  if (own != nullptr) return own->f();
  return DefaultRule(node, name, v1::Attribute::kF).values.front();
}

absl::string_view WordAttribute(const v1::Node& node, absl::string_view name) {
  const v1::Attribute* own = Find(node, name);
  if (own != nullptr) return own->s();
  return DefaultRule(node, name, v1::Attribute::kS).words.front();
}

std::vector<int64_t> IntegersAttribute(const v1::Node& node, absl::string_view name) {
  const v1::Attribute* own = Find(node, name);
  if (own != nullptr) return {own->integers().values().begin(), own->integers().values().end()};
  const AttributeRule& rule = DefaultRule(node, name, v1::Attribute::kIntegers);
  if (!rule.same_as.empty()) return IntegersAttribute(node, rule.same_as);
  return {rule.values.begin(), rule.values.end()};
}

std::vector<double> NumbersAttribute(const v1::Node& node, absl::string_view name) {
  const v1::Attribute* own = Find(node, name);
  if (own != nullptr) return {own->numbers().values().begin(), own->numbers().values().end()};
  return DefaultRule(node, name, v1::Attribute::kNumbers).values;
}

Window ConvolutionWindow(const v1::Node& node, absl::Span<const int64_t> weight_shape) {
  Window window{.kernel = {weight_shape[2], weight_shape[3]},
                .strides = Pair(IntegersAttribute(node, "strides")),
                .dilations = Pair(IntegersAttribute(node, "dilations"))};
  SetPadding(node, window);
  return window;
}

Window PoolingWindow(const v1::Node& node) {
  Window window{.kernel = Pair(IntegersAttribute(node, "kernel")),
                .strides = Pair(IntegersAttribute(node, "strides")),
                .dilations = {1, 1}};
  if (HasAttribute(node, "dilations")) {
    window.dilations = Pair(IntegersAttribute(node, "dilations"));
  }
  SetPadding(node, window);
  return window;
}

int64_t AxisAttribute(const v1::Node& node, int64_t rank) {
  const int64_t axis = IntegerAttribute(node, "axis");
  return axis < 0 ? axis + rank : axis;
}

std::vector<int64_t> AxesAttribute(const v1::Node& node, int64_t rank) {
  std::vector<int64_t> axes = IntegersAttribute(node, "axes");
  for (int64_t& axis : axes) {
    if (axis < 0) axis += rank;
  }
  std::ranges::sort(axes);
  return axes;
}

SliceRange SliceAttributes(const v1::Node& node, absl::Span<const int64_t> x_shape) {
  const int64_t rank = x_shape.size();
  const std::vector<int64_t> axes = IntegersAttribute(node, "axes");
  const std::vector<int64_t> starts = IntegersAttribute(node, "starts");
  const std::vector<int64_t> ends = IntegersAttribute(node, "ends");
  SliceRange range{.starts = std::vector<int64_t>(rank, 0),
                   .steps = std::vector<int64_t>(rank, 1),
                   .lengths = {x_shape.begin(), x_shape.end()}};
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = axes[i] < 0 ? axes[i] + rank : axes[i];
    const int64_t size = x_shape[axis];
    const auto position = [&](int64_t p) {
      return std::clamp<int64_t>(p < 0 ? std::max(p, -size) + size : p, 0, size);
    };
    const int64_t step =
        HasAttribute(node, "steps") ? IntegersAttribute(node, "steps")[i] : int64_t{1};
    range.starts[axis] = position(starts[i]);
    range.steps[axis] = step;
    const int64_t extent = position(ends[i]) - range.starts[axis];
    range.lengths[axis] = extent <= 0 ? 0 : (extent - 1) / step + 1;
  }
  return range;
}

double AttentionScale(const v1::Node& node, absl::Span<const int64_t> q_shape) {
  if (HasAttribute(node, "scale")) return NumberAttribute(node, "scale");
  const double channels = q_shape.back();
  return 1 / std::sqrt(channels / IntegerAttribute(node, "heads"));
}

DimensionPart PartAttributes(const v1::Node& node, int64_t own) {
  return {.first = IntegerAttribute(node, "first"),
          .whole = HasAttribute(node, "whole") ? IntegerAttribute(node, "whole") : own};
}

absl::optional<int64_t> IgnoreIndex(const v1::Node& node) {
  if (!HasAttribute(node, "ignore_index")) return absl::nullopt;
  return IntegerAttribute(node, "ignore_index");
}

}  // namespace muster
