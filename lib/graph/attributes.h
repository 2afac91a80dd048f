// Reads a node's attributes, with the defaults of lib/graph/ops.md, and derives values from several
// attributes and a shape. Requires: the node has passed InferTypes. Reading an attribute that the
// node lacks fails a CHECK if its operator has no such attribute of that kind, or no default for
// it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Returns whether the node itself has the attribute, ignoring defaults.
bool HasAttribute(const v1::Node& node, absl::string_view name);

// These return the node's value, or the default.
int64_t IntegerAttribute(const v1::Node& node, absl::string_view name);
double NumberAttribute(const v1::Node& node, absl::string_view name);
absl::string_view WordAttribute(const v1::Node& node, absl::string_view name);
std::vector<int64_t> IntegersAttribute(const v1::Node& node, absl::string_view name);
std::vector<double> NumbersAttribute(const v1::Node& node, absl::string_view name);

// ---------------------------------------------------------------- meanings

// The window of a convolution or pooling; height before width.
struct Window {
  std::array<int64_t, 2> kernel;
  std::array<int64_t, 2> strides;
  std::array<int64_t, 2> padding_before;  // top, left
  std::array<int64_t, 2> padding_after;   // bottom, right
  std::array<int64_t, 2> dilations;       // 1, 1 for averages
};

// Returns the window of Conv2d, its gradients and its fusions. `weight_shape` is the shape of w.
Window ConvolutionWindow(const v1::Node& node, absl::Span<const int64_t> weight_shape);

// Returns the window of MaxPool2d, AveragePool2d and their gradients. The shapes already include
// `ceil`, so windows may extend beyond padding_after.
Window PoolingWindow(const v1::Node& node);

// Returns attribute `axis`, counted from the front.
int64_t AxisAttribute(const v1::Node& node, int64_t rank);

// Returns attribute `axes`, counted from the front, ascending. `rank` is the rank of x; for
// Unsqueeze it is the rank of y.
std::vector<int64_t> AxesAttribute(const v1::Node& node, int64_t rank);

// The range of a Slice: element i of y in dimension k is element starts[k] + i * steps[k] of x.
struct SliceRange {
  std::vector<int64_t> starts;   // in [0, size], one per dimension of x
  std::vector<int64_t> steps;    // one per dimension of x
  std::vector<int64_t> lengths;  // y's shape
};
SliceRange SliceAttributes(const v1::Node& node, absl::Span<const int64_t> x_shape);

// Returns the factor of q kᵀ in Attention; `q_shape` is [B, T, C].
double AttentionScale(const v1::Node& node, absl::Span<const int64_t> q_shape);

// The part [first, first + own) of `whole` elements that a rank of a split graph has of a
// dimension.
struct DimensionPart {
  int64_t first;
  int64_t whole;
};

// Returns attributes `first` and `whole`. `own` is the size of the rank's dimension.
DimensionPart PartAttributes(const v1::Node& node, int64_t own);

// Returns the target value that does not count; nullopt: all targets count.
absl::optional<int64_t> IgnoreIndex(const v1::Node& node);

}  // namespace muster
