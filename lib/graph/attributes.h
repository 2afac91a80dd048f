// A node's attributes with the defaults of lib/graph/ops.md filled in, and what several of them
// (and a shape) mean together. For nodes that have passed InferTypes: a wrong name or kind is a bug
// and fails a CHECK.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Whether the node itself has it: no default.
bool HasAttribute(const v1::Node& node, absl::string_view name);

// The node's value, or the default.
int64_t IntegerAttribute(const v1::Node& node, absl::string_view name);
double NumberAttribute(const v1::Node& node, absl::string_view name);
absl::string_view WordAttribute(const v1::Node& node, absl::string_view name);
std::vector<int64_t> IntegersAttribute(const v1::Node& node, absl::string_view name);
std::vector<double> NumbersAttribute(const v1::Node& node, absl::string_view name);

// ---------------------------------------------------------------- meanings

// What a convolution or pooling looks through; height before width.
struct Window {
  std::array<int64_t, 2> kernel;
  std::array<int64_t, 2> strides;
  std::array<int64_t, 2> padding_before;  // top, left
  std::array<int64_t, 2> padding_after;   // bottom, right
  std::array<int64_t, 2> dilations;       // 1, 1 for averages
};

// Of Conv2d, its gradients and its fusions; `weight_shape` is that of w.
Window ConvolutionWindow(const v1::Node& node, absl::Span<const int64_t> weight_shape);

// Of MaxPool2d, AveragePool2d and their gradients. Ceil is in the shapes; windows may reach beyond
// padding_after.
Window PoolingWindow(const v1::Node& node);

// Attribute `axis`, counted from the front.
int64_t AxisAttribute(const v1::Node& node, int64_t rank);

// Attribute `axes`, counted from the front, ascending. `rank`: of x; of y for Unsqueeze.
std::vector<int64_t> AxesAttribute(const v1::Node& node, int64_t rank);

// Slice: y's element i of dimension k is x's element starts[k] + i * steps[k].
struct SliceRange {
  std::vector<int64_t> starts;   // in [0, size], one per dimension of x
  std::vector<int64_t> steps;    // likewise
  std::vector<int64_t> lengths;  // y's shape
};
SliceRange SliceAttributes(const v1::Node& node, absl::Span<const int64_t> x_shape);

// What Attention multiplies q kᵀ with; `q_shape` is [B, T, C].
double AttentionScale(const v1::Node& node, absl::Span<const int64_t> q_shape);

// Targets with this value do not count; nullopt: all do.
absl::optional<int64_t> IgnoreIndex(const v1::Node& node);

}  // namespace muster
