#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/graph/onnx/converters/converters.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::NodeProto;

absl::StatusOr<std::string> Reduced(OnnxImporter& im, const NodeProto& node, absl::string_view op,
                                    const std::string& x, const std::vector<int64_t>& axes,
                                    bool keep) {
  return im.Make(node, op, {x}, {{"axes", IntegersValue(axes)}, {"keep", IntegerValue(keep)}});
}

// Makes the log of the sum of exponentials. The largest value is subtracted first, so that none
// overflows.
absl::StatusOr<std::string> LogSumExp(OnnxImporter& im, const NodeProto& node, const std::string& x,
                                      const std::vector<int64_t>& axes, bool keep) {
  ASSIGN_OR_RETURN(const std::string largest, Reduced(im, node, "ReduceMax", x, axes, true));
  ASSIGN_OR_RETURN(const std::string shifted, im.Make(node, "Sub", {x, largest}));
  ASSIGN_OR_RETURN(const std::string exponentials, im.Make(node, "Exp", {shifted}));
  ASSIGN_OR_RETURN(const std::string sum, Reduced(im, node, "ReduceSum", exponentials, axes, true));
  ASSIGN_OR_RETURN(const std::string log, im.Make(node, "Log", {sum}));
  ASSIGN_OR_RETURN(const std::string y, im.Make(node, "Add", {log, largest}));
  if (keep) return y;
  return im.Make(node, "Squeeze", {y}, {{"axes", IntegersValue(axes)}});
}

absl::StatusOr<std::string> Reduction(OnnxImporter& im, const NodeProto& node, const std::string& x,
                                      const std::vector<int64_t>& axes, bool keep) {
  const std::string& op = node.op_type();
  if (op == "ReduceSum" || op == "ReduceMean" || op == "ReduceMax") {
    if (im.TypeOf(x) != v1::DTYPE_I32) return Reduced(im, node, op, x, axes, keep);
    // Sums through f32, which is exact while they stay below 2^24.
    ASSIGN_OR_RETURN(const std::string floats,
                     im.Make(node, "Cast", {x}, {{"to", WordValue("f32")}}));
    ASSIGN_OR_RETURN(const std::string y, Reduced(im, node, op, floats, axes, keep));
    return im.Make(node, "Cast", {y}, {{"to", WordValue("i32")}});
  }
  if (op == "ReduceMin") {
    ASSIGN_OR_RETURN(const std::string negated, im.Make(node, "Neg", {x}));
    ASSIGN_OR_RETURN(const std::string y, Reduced(im, node, "ReduceMax", negated, axes, keep));
    return im.Make(node, "Neg", {y});
  }
  if (op == "ReduceL1") {
    ASSIGN_OR_RETURN(const std::string sizes, im.Make(node, "Abs", {x}));
    return Reduced(im, node, "ReduceSum", sizes, axes, keep);
  }
  if (op == "ReduceL2" || op == "ReduceSumSquare") {
    ASSIGN_OR_RETURN(const std::string squares, im.Make(node, "Mul", {x, x}));
    ASSIGN_OR_RETURN(const std::string sum, Reduced(im, node, "ReduceSum", squares, axes, keep));
    if (op == "ReduceSumSquare") return sum;
    return im.Make(node, "Sqrt", {sum});
  }
  if (op == "ReduceLogSum") {
    ASSIGN_OR_RETURN(const std::string sum, Reduced(im, node, "ReduceSum", x, axes, keep));
    return im.Make(node, "Log", {sum});
  }
  return LogSumExp(im, node, x, axes, keep);
}

absl::Status Reduce(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const int64_t rank, im.Rank(node, 0));
  ASSIGN_OR_RETURN(auto axes, im.IntegersOf(node, 1, "axes"));
  if (!axes || axes->empty()) {
    if (Integer(node, "noop_with_empty_axes", 0) != 0 || rank == 0) {
      im.Alias(node, 0, x);
      return absl::OkStatus();
    }
    axes.emplace(rank);
    std::iota(axes->begin(), axes->end(), 0);
  }
  ASSIGN_OR_RETURN(const std::string y,
                   Reduction(im, node, x, *axes, Integer(node, "keepdims", 1) != 0));
  im.Alias(node, 0, y);
  return absl::OkStatus();
}

// Returns a permutation that exchanges two dimensions. The same permutation restores them.
std::vector<int64_t> Exchanged(int64_t rank, int64_t a, int64_t b) {
  std::vector<int64_t> permutation(rank);
  std::iota(permutation.begin(), permutation.end(), 0);
  std::swap(permutation[a], permutation[b]);
  return permutation;
}

absl::Status Softmax(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const int64_t rank, im.Rank(node, 0));
  int64_t axis = Integer(node, "axis", -1);
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank) return NodeFault(node, "has an axis outside its input");
  if (axis == rank - 1) return im.Add(node, node.op_type(), {x}, {im.Output(node, 0)});
  const std::vector<int64_t> last = Exchanged(rank, axis, rank - 1);
  ASSIGN_OR_RETURN(const std::string moved, im.Transposed(node, x, last));
  ASSIGN_OR_RETURN(const std::string y, im.Make(node, node.op_type(), {moved}));
  return im.Add(node, "Transpose", {y}, {im.Output(node, 0)},
                {{"permutation", IntegersValue(last)}});
}

absl::Status CumSum(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const int64_t rank, im.Rank(node, 0));
  ASSIGN_OR_RETURN(const double along, im.Number(node, 1, 0));
  const int64_t axis = ToInteger(along) < 0 ? ToInteger(along) + rank : ToInteger(along);
  return im.Add(node, "CumSum", {x}, {im.Output(node, 0)},
                {{"axis", IntegerValue(axis)},
                 {"exclusive", IntegerValue(Integer(node, "exclusive", 0))},
                 {"reverse", IntegerValue(Integer(node, "reverse", 0))}});
}

// Converts ArgMax and ArgMin to the index of a TopK of one element.
absl::Status Extreme(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const int64_t rank, im.Rank(node, 0));
  int64_t axis = Integer(node, "axis", 0);
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank) return NodeFault(node, "has an axis outside its input");
  if (Integer(node, "select_last_index", 0) != 0)
    return NodeFault(node, "has select_last_index, which is not supported");
  if (im.TypeOf(x) == v1::DTYPE_I32) {
    ASSIGN_OR_RETURN(x, im.Make(node, "Cast", {x}, {{"to", WordValue("f32")}}));
  }
  const std::vector<int64_t> last = Exchanged(rank, axis, rank - 1);
  ASSIGN_OR_RETURN(const std::string moved, im.Transposed(node, x, last));
  const std::string index = im.Intermediate(node, "index");
  RETURN_IF_ERROR(
      im.Add(node, "TopK", {moved}, {im.Intermediate(node, "value"), index},
             {{"k", IntegerValue(1)}, {"largest", IntegerValue(node.op_type() == "ArgMax")}}));
  ASSIGN_OR_RETURN(std::string y, im.Transposed(node, index, last));
  if (Integer(node, "keepdims", 1) == 0) {
    ASSIGN_OR_RETURN(y, im.Make(node, "Squeeze", {y}, {{"axes", IntegersValue({axis})}}));
  }
  im.Alias(node, 0, y);
  return absl::OkStatus();
}

absl::Status TopK(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const int64_t rank, im.Rank(node, 0));
  ASSIGN_OR_RETURN(const double k, im.Number(node, 1, Integer(node, "k", 1)));
  int64_t axis = Integer(node, "axis", -1);
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank) return NodeFault(node, "has an axis outside its input");
  const std::vector<int64_t> last = Exchanged(rank, axis, rank - 1);
  ASSIGN_OR_RETURN(const std::string moved, im.Transposed(node, x, last));
  const std::string values = im.Intermediate(node, "values");
  const std::string index = im.Intermediate(node, "index");
  RETURN_IF_ERROR(im.Add(
      node, "TopK", {moved}, {values, index},
      {{"k", IntegerValue(ToInteger(k))}, {"largest", IntegerValue(Integer(node, "largest", 1))}}));
  ASSIGN_OR_RETURN(const std::string y, im.Transposed(node, values, last));
  ASSIGN_OR_RETURN(const std::string places, im.Transposed(node, index, last));
  im.Alias(node, 0, y);
  if (HasOutput(node, 1)) im.Alias(node, 1, places);
  return absl::OkStatus();
}

}  // namespace

void AddReductionConverters(ConverterTable& table) {
  for (const char* op : {"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
                         "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare"}) {
    table[op] = Reduce;
  }
  table["ArgMax"] = table["ArgMin"] = Extreme;
  table["CumSum"] = CumSum;
  table["LogSoftmax"] = table["Softmax"] = Softmax;
  table["TopK"] = TopK;
}

}  // namespace muster
