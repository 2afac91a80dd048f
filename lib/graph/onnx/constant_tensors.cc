// The part of OnnxImporter that turns constants into tensors of the graph, for any size of the
// batch.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lib/graph/onnx/importer.h"
#include "lib/status/status.h"

namespace muster {

using onnx::NodeProto;

absl::StatusOr<std::string> OnnxImporter::TensorFor(const NodeProto& node, const FoldedValue& value,
                                                    bool broadcasts) {
  if (!value.depends_on_batch()) return Constant(node, value.floating(), value.at(0));
  const absl::StatusOr<std::vector<Extent>> shape = value.Shape();
  if (!shape.ok()) return NodeFault(node, shape.status().message());
  const int64_t dimensions = std::ranges::count_if(*shape, &Extent::of_batch);
  if (dimensions == 0) return MaterializeNumber(node, value);
  if (dimensions > 1) return NodeFault(node, "reads a constant with the batch in two dimensions");
  const int64_t axis = std::ranges::find_if(*shape, &Extent::of_batch) - shape->begin();
  return MaterializeRows(node, value, axis, (*shape)[axis].value, broadcasts);
}

// Computes a + c * batch for each element. The run computes the batch's size from the indices of
// its samples.
absl::StatusOr<std::string> OnnxImporter::MaterializeNumber(const NodeProto& node,
                                                            const FoldedValue& value) {
  NumberArray factor = value.at(1), rest = value.at(0);
  const double step = kProbeBatch[1] - kProbeBatch[0];
  for (size_t i = 0; i < factor.values.size(); ++i) {
    factor.values[i] = (factor.values[i] - rest.values[i]) / step;
    rest.values[i] -= factor.values[i] * kProbeBatch[0];
    const double expected = rest.values[i] + factor.values[i] * kProbeBatch[2];
    const double found = value.at(2).values[i];
    if (!(std::abs(found - expected) <= 1e-6 * std::max(1.0, std::abs(found)))) {
      return NodeFault(node, "reads a number that depends on the batch in an unusual way");
    }
  }
  ASSIGN_OR_RETURN(const std::string like, Like(node));
  ASSIGN_OR_RETURN(const std::string index, Make(node, "SampleIndex", {like}));
  ASSIGN_OR_RETURN(const std::string floats,
                   Make(node, "Cast", {index}, {{"to", WordValue("f32")}}));
  // The batch is the largest index plus one.
  ASSIGN_OR_RETURN(
      const std::string last,
      Make(node, "ReduceMax", {floats}, {{"axes", IntegersValue({0})}, {"keep", IntegerValue(0)}}));
  ASSIGN_OR_RETURN(const std::string one, Scalar(node, 1, true));
  ASSIGN_OR_RETURN(const std::string batch, Make(node, "Add", {last, one}));
  ASSIGN_OR_RETURN(const std::string c, Constant(node, true, factor));
  ASSIGN_OR_RETURN(const std::string a, Constant(node, true, rest));
  ASSIGN_OR_RETURN(const std::string product, Make(node, "Mul", {c, batch}));
  ASSIGN_OR_RETURN(const std::string sum, Make(node, "Add", {product, a}));
  if (value.floating()) return sum;
  return Make(node, "Cast", {sum}, {{"to", WordValue("i32")}});
}

// Makes a constant with `each` rows per sample along `axis`: the rows of sample s are base + s *
// step.
absl::StatusOr<std::string> OnnxImporter::MaterializeRows(const NodeProto& node,
                                                          const FoldedValue& value, int64_t axis,
                                                          int64_t each, bool broadcasts) {
  const std::vector<int64_t>& shape = value.at(0).shape;
  const int64_t outer = ElementsOf({shape.begin(), shape.begin() + axis});
  const int64_t inner = each * ElementsOf({shape.begin() + axis + 1, shape.end()});
  const auto at = [&](int probe, int64_t o, int64_t sample, int64_t i) {
    return value.at(probe).values[(o * kProbeBatch[probe] + sample) * inner + i];
  };
  // The shape is [1, outer dimensions, each, inner dimensions].
  NumberArray base{.shape = {1}};
  base.shape.insert(base.shape.end(), shape.begin(), shape.begin() + axis);
  base.shape.push_back(each);
  base.shape.insert(base.shape.end(), shape.begin() + axis + 1, shape.end());
  NumberArray step = base;
  bool moves = false;
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < inner; ++i) {
      const double first = at(0, o, 0, i);
      // Equal infinities have no difference, so equality is checked first.
      const double difference = at(0, o, 1, i) == first ? 0 : at(0, o, 1, i) - first;
      base.values.push_back(first);
      step.values.push_back(difference);
      moves = moves || difference != 0;
      for (int p = 0; p < kProbes; ++p) {
        for (int64_t s = 0; s < kProbeBatch[p]; ++s) {
          const double expected = difference == 0 ? first : first + difference * s;
          if (at(p, o, s, i) != expected) {
            return NodeFault(node, "reads a constant that depends on the batch in an unusual way");
          }
        }
      }
    }
  }
  ASSIGN_OR_RETURN(std::string y, Constant(node, value.floating(), base));
  std::vector<Extent> wide;
  for (int64_t size : base.shape) wide.push_back({size});
  wide[0] = {1, true};
  if (moves) {
    ASSIGN_OR_RETURN(const std::string like, Like(node));
    ASSIGN_OR_RETURN(std::string index, Make(node, "SampleIndex", {like}));
    if (value.floating()) {
      ASSIGN_OR_RETURN(index, Make(node, "Cast", {index}, {{"to", WordValue("f32")}}));
    }
    std::vector<Extent> column(wide.size(), Extent{1});
    column[0] = {1, true};
    ASSIGN_OR_RETURN(index, Reshaped(node, index, column));
    ASSIGN_OR_RETURN(const std::string steps, Constant(node, value.floating(), step));
    ASSIGN_OR_RETURN(const std::string moved, Make(node, "Mul", {index, steps}));
    ASSIGN_OR_RETURN(y, Make(node, "Add", {moved, y}));
  } else if (!broadcasts || each > 1) {
    ASSIGN_OR_RETURN(y, Expanded(node, y, wide));
  } else {
    wide[0] = {1};
  }
  // Moves the batch to its place and merges `each` with it.
  std::vector<int64_t> permutation;
  for (int64_t d = 1; d <= axis; ++d) permutation.push_back(d);
  permutation.push_back(0);
  for (int64_t d = axis + 1; d < std::ssize(wide); ++d) permutation.push_back(d);
  ASSIGN_OR_RETURN(y, Transposed(node, y, permutation));
  std::vector<Extent> target;
  for (int64_t d = 0; d < std::ssize(shape); ++d) target.push_back({shape[d]});
  target[axis] = {each, wide[0].of_batch};
  return Reshaped(node, y, target);
}

}  // namespace muster
