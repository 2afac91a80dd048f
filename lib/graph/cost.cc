#include "lib/graph/cost.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "lib/graph/attributes.h"
#include "lib/graph/autodiff.h"
#include "lib/graph/operator.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using Shape = std::vector<int64_t>;

// A node with the shapes of its tensors.
struct Shaped {
  const Shape& input(int i) const { return types.at(node.inputs(i)).shape; }
  const Shape& output(int i) const { return types.at(node.outputs(i)).shape; }
  int64_t elements(const std::string& tensor) const { return types.at(tensor).elements(); }

  const v1::Node& node;
  const TensorTypes& types;
};

int64_t LinearProducts(const Shaped& s) {
  if (s.node.op() == "LinearGradBias") return 0;
  // w is [outer, inner], as an input or as the output dw. Each element of x is multiplied once per
  // row of w, each element of dy once per column.
  const Shape& w = absl::StartsWith(s.node.op(), "LinearGradWeight") ? s.output(0) : s.input(1);
  const bool has_outputs = absl::StartsWith(s.node.op(), "LinearGrad");
  return s.elements(s.node.inputs(0)) * w[has_outputs ? 1 : 0];
}

int64_t MatMulProducts(const Shaped& s) {
  const bool is_gradient = s.node.op() != "MatMul";
  const Shape& a = s.input(is_gradient ? 1 : 0);
  const int64_t inner = a[a.size() - (IntegerAttribute(s.node, "transpose_a") != 0 ? 2 : 1)];
  return inner * s.elements(is_gradient ? s.node.inputs(0) : s.node.outputs(0));
}

int64_t ConvolutionProducts(const Shaped& s) {
  const absl::string_view op = s.node.op();
  if (op == "Conv2dGradBias") return 0;
  const bool is_gradient = absl::StartsWith(op, "Conv2dGrad");
  const Shape& w = s.input(op == "Conv2dGradWeight" ? 2 : 1);
  return s.elements(is_gradient ? s.node.inputs(0) : s.node.outputs(0)) * w[1] * w[2] * w[3];
}

// Every pixel of x is multiplied with all weights of its channel.
int64_t TransposedConvolutionProducts(const Shaped& s) {
  const Shape& w = s.input(1);
  return s.elements(s.node.inputs(0)) * w[1] * w[2] * w[3];
}

int64_t SelfAttentionProducts(const Shaped& s) {
  const bool is_gradient = s.node.op() == "SelfAttentionGrad";
  const Shape& qkv = s.input(is_gradient ? 1 : 0);
  const int64_t forward = 2 * qkv[0] * qkv[1] * qkv[1] * (qkv[2] / 3);
  return is_gradient ? 2 * forward : forward;
}

int64_t AttentionProducts(const Shaped& s) {
  const bool is_gradient = s.node.op() == "AttentionGrad";
  const Shape& q = s.input(is_gradient ? 1 : 0);
  const Shape& v = s.input(is_gradient ? 3 : 2);
  const int64_t forward = q[0] * q[1] * v[1] * (q[2] + v[2]);
  return is_gradient ? 2 * forward : forward;
}

// Lstm and Gru: every step of every direction multiplies with w and r.
int64_t RecurrenceProducts(const Shaped& s) {
  const bool is_gradient = absl::EndsWith(s.node.op(), "Grad");
  const int first = !is_gradient ? 0 : s.node.op() == "LstmGrad" ? 3 : 2;
  const Shape& x = s.input(first);
  const int64_t weights =
      s.elements(s.node.inputs(first + 1)) + s.elements(s.node.inputs(first + 2));
  return x[0] * x[1] * weights * (is_gradient ? 2 : 1);
}

int64_t Products(const Shaped& s) {
  const absl::string_view op = s.node.op();
  if (absl::StartsWith(op, "Linear")) return LinearProducts(s);
  if (absl::StartsWith(op, "MatMul")) return MatMulProducts(s);
  if (absl::StartsWith(op, "Conv2d")) return ConvolutionProducts(s);
  if (op == "ConvTranspose2d") return TransposedConvolutionProducts(s);
  if (absl::StartsWith(op, "SelfAttention")) return SelfAttentionProducts(s);
  if (absl::StartsWith(op, "Attention")) return AttentionProducts(s);
  if (absl::StartsWith(op, "Lstm") || absl::StartsWith(op, "Gru")) return RecurrenceProducts(s);
  return 0;
}

int64_t MovedBytes(const Shaped& s) {
  const absl::string_view op = s.node.op();
  for (absl::string_view still : {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "ReshapeGrad",
                                  "GradientAllReduce", "Constant"}) {
    if (op == still) return 0;
  }
  const Operator& signature = *FindOperator(op);
  int64_t bytes = 0;
  absl::flat_hash_set<absl::string_view> read;
  for (int i = 0; i < s.node.inputs_size(); ++i) {
    // A Gather or Embedding reads only the rows of its table that it writes.
    if (((op == "Gather" || op == "GatherElements") && i == 0) || (op == "Embedding" && i == 1)) {
      bytes += s.types.at(s.node.outputs(0)).bytes();
    } else if (!signature.input(i).shape_only && read.insert(s.node.inputs(i)).second) {
      bytes += s.types.at(s.node.inputs(i)).bytes();
    }
  }
  for (const std::string& output : s.node.outputs()) bytes += s.types.at(output).bytes();
  return bytes;
}

}  // namespace

Cost& Cost::operator+=(const Cost& other) {
  flops += other.flops;
  bytes += other.bytes;
  return *this;
}

Cost NodeCost(const v1::Node& node, const TensorTypes& types) {
  const Shaped shaped{node, types};
  return {.flops = 2 * Products(shaped), .bytes = MovedBytes(shaped)};
}

absl::StatusOr<TrainingCost> GraphCost(const v1::Graph& forward, int64_t batch) {
  ASSIGN_OR_RETURN(const v1::Graph graph, Differentiate(forward));
  ASSIGN_OR_RETURN(const TensorTypes types, InferTypes(graph, batch));
  TrainingCost cost;
  for (int i = 0; i < graph.nodes_size(); ++i) {
    (i < forward.nodes_size() ? cost.forward : cost.backward) += NodeCost(graph.nodes(i), types);
  }
  return cost;
}

ParameterCount CountParameters(const v1::Graph& graph) {
  ParameterCount count;
  for (const v1::Parameter& parameter : graph.parameters()) {
    int64_t elements = 1;
    for (int64_t size : parameter.shape()) elements *= size;
    (parameter.has_statistic_momentum() ? count.statistic : count.trained) += elements;
  }
  return count;
}

}  // namespace muster
