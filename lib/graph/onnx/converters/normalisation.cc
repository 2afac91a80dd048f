#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/graph/onnx/converters/converters.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::NodeProto;

Attributes Epsilon(const NodeProto& node) {
  return {{"epsilon", NumberValue(Number(node, "epsilon", 1e-5))}};
}

// Makes a vector over the channels a [1, C, 1, ...].
absl::StatusOr<std::string> Column(OnnxImporter& im, const NodeProto& node, int i, int64_t rank) {
  std::vector<int64_t> column(rank, 1);
  column[1] = -1;
  ASSIGN_OR_RETURN(const std::string vector, im.Tensor(node, i));
  return im.Make(node, "Reshape", {vector}, {{"shape", IntegersValue(column)}});
}

// Converts a batch norm with statistics that are not parameters of the file, for example in a
// function that normalises weights (Brock et al. 2021). In training form it uses the statistics of
// its input. Otherwise it uses the given mean and variance, which may be computed.
absl::Status PlainNormalization(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const int64_t rank, im.Rank(node, 0));
  if (rank < 2 || node.input_size() != 5) return NodeFault(node, "needs [B, C, ...], five inputs");
  std::string centred, variance;
  if (Integer(node, "training_mode", 0) != 0) {
    std::vector<int64_t> axes(rank);
    std::iota(axes.begin(), axes.end(), 0);
    axes.erase(axes.begin() + 1);
    const Attributes over = {{"axes", IntegersValue(axes)}, {"keep", IntegerValue(1)}};
    ASSIGN_OR_RETURN(const std::string mean, im.Make(node, "ReduceMean", {x}, over));
    ASSIGN_OR_RETURN(centred, im.Make(node, "Sub", {x, mean}));
    ASSIGN_OR_RETURN(const std::string square, im.Make(node, "Mul", {centred, centred}));
    ASSIGN_OR_RETURN(variance, im.Make(node, "ReduceMean", {square}, over));
  } else {
    ASSIGN_OR_RETURN(const std::string mean, Column(im, node, 3, rank));
    ASSIGN_OR_RETURN(centred, im.Make(node, "Sub", {x, mean}));
    ASSIGN_OR_RETURN(variance, Column(im, node, 4, rank));
  }
  ASSIGN_OR_RETURN(const std::string epsilon, im.Scalar(node, Number(node, "epsilon", 1e-5), true));
  ASSIGN_OR_RETURN(const std::string safe, im.Make(node, "Add", {variance, epsilon}));
  ASSIGN_OR_RETURN(const std::string deviation, im.Make(node, "Sqrt", {safe}));
  ASSIGN_OR_RETURN(std::string y, im.Make(node, "Div", {centred, deviation}));
  for (int i = 1; i <= 2; ++i) {
    const FoldedValue* known = im.Folded(node, i);
    if (known != nullptr && known->Single() == (i == 1 ? 1.0 : 0.0)) continue;
    ASSIGN_OR_RETURN(const std::string column, Column(im, node, i, rank));
    ASSIGN_OR_RETURN(y, im.Make(node, i == 1 ? "Mul" : "Add", {y, column}));
  }
  im.Alias(node, 0, y);
  return absl::OkStatus();
}

absl::Status BatchNormalization(OnnxImporter& im, const NodeProto& node) {
  if (im.ParameterOf(node, 3) < 0) return PlainNormalization(im, node);
  const double momentum = 1 - Number(node, "momentum", 0.9);
  ASSIGN_OR_RETURN(const std::vector<std::string> in, im.Tensors(node));
  if (in.size() != 5) return NodeFault(node, "needs five inputs");
  if (!(momentum > 0 && momentum <= 1)) return NodeFault(node, "has a momentum of 1");
  RETURN_IF_ERROR(im.MakeStatistic(node, 3, momentum));
  RETURN_IF_ERROR(im.MakeStatistic(node, 4, momentum));
  const std::string y = im.Output(node, 0);
  return im.Add(node, "BatchNorm", {in[0], in[3], in[4], in[2], in[1]},
                {y, im.Intermediate(node, "mean"), im.Intermediate(node, "rstd"),
                 im.Intermediate(node, "variance"), im.Intermediate(node, "state")},
                Epsilon(node));
}

// Returns input i with all its elements in one dimension.
absl::StatusOr<std::string> Flat(OnnxImporter& im, const NodeProto& node, int i) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, i));
  ASSIGN_OR_RETURN(const int64_t rank, im.Rank(node, i));
  if (rank == 1) return x;
  return im.Make(node, "Reshape", {x}, {{"shape", IntegersValue({-1})}});
}

// Converts a norm over the last dimensions, from `axis` on. Several dimensions are merged into one.
absl::Status LastNorm(OnnxImporter& im, const NodeProto& node, absl::string_view op) {
  ASSIGN_OR_RETURN(std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
  const int64_t rank = std::ssize(shape);
  int64_t axis = Integer(node, "axis", -1);
  if (axis < 0) axis += rank;
  if (axis < 1 || axis >= rank) return NodeFault(node, "normalises over the batch");
  const bool several = axis != rank - 1;
  if (several) {
    std::vector<Extent> joined(shape.begin(), shape.begin() + axis);
    joined.push_back({1});
    for (int64_t d = axis; d < rank; ++d) joined.back().value *= shape[d].value;
    ASSIGN_OR_RETURN(x, im.Reshaped(node, x, joined));
  }
  std::vector<std::string> inputs = {x};
  ASSIGN_OR_RETURN(inputs.emplace_back(), Flat(im, node, 1));
  if (HasInput(node, 2)) {
    ASSIGN_OR_RETURN(inputs.emplace_back(), Flat(im, node, 2));
  }
  std::vector<std::string> outputs = {several ? im.Intermediate(node, "norm") : im.Output(node, 0)};
  if (op == "LayerNorm") outputs.push_back(im.Intermediate(node, "mean"));
  outputs.push_back(im.Intermediate(node, "rstd"));
  const std::string y = outputs[0];
  RETURN_IF_ERROR(im.Add(node, op, inputs, std::move(outputs), Epsilon(node)));
  if (!several) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string apart, im.Reshaped(node, y, shape));
  im.Alias(node, 0, apart);
  return absl::OkStatus();
}

absl::Status LayerNormalization(OnnxImporter& im, const NodeProto& node) {
  return LastNorm(im, node, "LayerNorm");
}

absl::Status RmsNormalization(OnnxImporter& im, const NodeProto& node) {
  return LastNorm(im, node, "RmsNorm");
}

absl::Status GroupNorm(OnnxImporter& im, const NodeProto& node, int64_t groups,
                       std::vector<std::string> inputs) {
  return im.Add(node, "GroupNorm", std::move(inputs),
                {im.Output(node, 0), im.Intermediate(node, "mean"), im.Intermediate(node, "rstd")},
                {{"groups", IntegerValue(groups)}, {"epsilon", Epsilon(node)[0].second}});
}

// Converts GroupNormalization. Before opset 21 gain and bias have one value per group, which is
// repeated for the channels of the group.
absl::Status GroupNormalization(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(std::vector<std::string> inputs, im.Tensors(node));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.InputShape(node, 0));
  const int64_t groups = Integer(node, "num_groups", 1);
  if (inputs.size() != 3 || shape.size() < 2 || groups < 1 || shape[1].value % groups != 0) {
    return NodeFault(node, "has groups that do not divide its channels");
  }
  if (im.file().opset() < 21) {
    NumberArray group_of{.shape = {shape[1].value}};
    for (int64_t c = 0; c < shape[1].value; ++c) {
      group_of.values.push_back(static_cast<double>(c / (shape[1].value / groups)));
    }
    ASSIGN_OR_RETURN(const std::string index, im.Constant(node, false, group_of));
    for (int i = 1; i <= 2; ++i) {
      ASSIGN_OR_RETURN(inputs[i], im.Make(node, "Gather", {inputs[i], index}));
    }
  }
  return GroupNorm(im, node, groups, std::move(inputs));
}

absl::Status InstanceNormalization(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(std::vector<std::string> inputs, im.Tensors(node));
  ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.InputShape(node, 0));
  if (shape.size() < 3) return NodeFault(node, "needs [B, C, ...]");
  return GroupNorm(im, node, shape[1].value, std::move(inputs));
}

// Converts x / |x| along an axis.
absl::Status LpNormalization(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  const Attributes along = {{"axes", IntegersValue({Integer(node, "axis", -1)})},
                            {"keep", IntegerValue(1)}};
  std::string length;
  if (Integer(node, "p", 2) == 1) {
    ASSIGN_OR_RETURN(const std::string size, im.Make(node, "Abs", {x}));
    ASSIGN_OR_RETURN(length, im.Make(node, "ReduceSum", {size}, along));
  } else {
    ASSIGN_OR_RETURN(const std::string square, im.Make(node, "Mul", {x, x}));
    ASSIGN_OR_RETURN(const std::string sum, im.Make(node, "ReduceSum", {square}, along));
    ASSIGN_OR_RETURN(length, im.Make(node, "Sqrt", {sum}));
  }
  return im.Add(node, "Div", {x, length}, {im.Output(node, 0)});
}

}  // namespace

void AddNormalisationConverters(ConverterTable& table) {
  table["BatchNormalization"] = BatchNormalization;
  table["GroupNormalization"] = GroupNormalization;
  table["InstanceNormalization"] = InstanceNormalization;
  table["LayerNormalization"] = LayerNormalization;
  table["LpNormalization"] = LpNormalization;
  table["RMSNormalization"] = RmsNormalization;
}

}  // namespace muster
