// Ops that change shapes, move elements or select elements, and their gradients.
#include <array>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/concat.h"
#include "kernels/conversion.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gather.h"
#include "kernels/indexed_elements.h"
#include "kernels/slice.h"
#include "kernels/top_k.h"
#include "kernels/transpose.h"
#include "lib/engine/cpu/binding.h"
#include "lib/engine/element_type.h"
#include "lib/graph/attributes.h"

namespace muster {
namespace {

using Shape = std::vector<int64_t>;

int ElementBytes(const TensorType& type) {
  return static_cast<int>(kernels::ElementBytes(ElementTypeOf(type.dtype)));
}

int64_t Product(Shape::const_iterator begin, Shape::const_iterator end) {
  return std::accumulate(begin, end, int64_t{1}, std::multiplies<>());
}

PlannedNode PlanReshape(const CpuNode& n) { return PlanAlias(n); }
PlannedNode PlanReshapeGrad(const CpuNode& n) { return PlanAlias(n, {1}); }

PlannedNode PlanTranspose(const CpuNode& n) {
  return {.prepare =
              Call([shape = n.inputs[0].shape, size = ElementBytes(n.inputs[0]),
                    permutation = IntegersAttribute(*n.node, "permutation")](const NodeMemory& m) {
                kernels::Transpose(m.outputs[0], m.inputs[0], shape, permutation, size);
              })};
}

PlannedNode PlanTransposeGrad(const CpuNode& n) {
  const Shape permutation = IntegersAttribute(*n.node, "permutation");
  Shape inverse(permutation.size());
  for (size_t k = 0; k < permutation.size(); ++k) inverse[permutation[k]] = k;
  return {.shape_only = {1},
          .prepare = Call([shape = n.inputs[0].shape, inverse,
                           size = ElementBytes(n.inputs[0])](const NodeMemory& m) {
            kernels::Transpose(m.outputs[0], m.inputs[0], shape, inverse, size);
          })};
}

PlannedNode PlanExpand(const CpuNode& n) {
  const std::vector<int> like = n.inputs.size() == 2 ? std::vector<int>{1} : std::vector<int>{};
  if (n.inputs[0].shape == n.outputs[0].shape) return PlanAlias(n, like);
  return {.shape_only = like,
          .prepare = Call([to = n.outputs[0].shape, from = n.inputs[0].shape](const NodeMemory& m) {
            kernels::Expand(m.outputs[0], to, m.inputs[0], from);
          })};
}

PlannedNode PlanSampleIndex(const CpuNode& n) {
  return {.shape_only = {0},
          .prepare = Call([samples = n.outputs[0].elements()](const NodeMemory& m) {
            std::iota(IntegerOutput(m), IntegerOutput(m) + samples, 0);
          })};
}

// --- Concat, Split, Slice, Pad and their gradients ----------------------------------------------

// The places of a tensor's parts in its memory, along the node's axis: each of `rows` rows has
// row_bytes[k] bytes of part k, one part after the other.
struct Parts {
  int64_t rows;
  Shape row_bytes;
};

Parts PartsOf(const CpuNode& n, absl::Span<const TensorType> parts) {
  const Shape& first = parts[0].shape;
  const int64_t axis = AxisAttribute(*n.node, first.size());
  Parts layout{.rows = Product(first.begin(), first.begin() + axis)};
  for (const TensorType& part : parts) {
    layout.row_bytes.push_back(part.bytes() / layout.rows);
  }
  return layout;
}

PlannedNode PlanJoin(const CpuNode& n) {
  PlannedNode plan;
  plan.prepare = [parts = PartsOf(n, n.inputs)](const NodeMemory& m) {
    return
        [parts, whole = m.outputs[0],
         sources = std::vector<const void*>(m.inputs.begin(), m.inputs.end())](const RunNumbers&) {
          kernels::Concat(whole, sources, parts.row_bytes, parts.rows);
          return absl::OkStatus();
        };
  };
  return plan;
}

PlannedNode PlanPart(const CpuNode& n) {
  PlannedNode plan;
  for (int i = 1; i < n.inputs.size(); ++i) plan.shape_only.push_back(i);  // inputs of ConcatGrad
  plan.prepare = [parts = PartsOf(n, n.outputs)](const NodeMemory& m) {
    return [parts, whole = m.inputs[0],
            targets = std::vector<void*>(m.outputs.begin(), m.outputs.end())](const RunNumbers&) {
      kernels::Split(targets, whole, parts.row_bytes, parts.rows);
      return absl::OkStatus();
    };
  };
  return plan;
}

PlannedNode PlanSlice(const CpuNode& n) {
  return {.prepare =
              Call([shape = n.inputs[0].shape, size = ElementBytes(n.inputs[0]),
                    range = SliceAttributes(*n.node, n.inputs[0].shape)](const NodeMemory& m) {
                kernels::Slice(m.outputs[0], range.lengths, m.inputs[0], shape, range.starts,
                               range.steps, size);
              })};
}

PlannedNode PlanSliceGrad(const CpuNode& n) {
  return {
      .shape_only = {1},
      .prepare = Call([shape = n.outputs[0].shape, size = ElementBytes(n.outputs[0]),
                       range = SliceAttributes(*n.node, n.outputs[0].shape)](const NodeMemory& m) {
        kernels::SliceGrad(m.outputs[0], shape, m.inputs[0], range.lengths, range.starts,
                           range.steps, size);
      })};
}

struct Border {
  Shape begins;
  Shape ends;
};

Border BorderOf(const CpuNode& n) {
  const Shape padding = IntegersAttribute(*n.node, "padding");
  const auto middle = padding.begin() + padding.size() / 2;
  return {{padding.begin(), middle}, {middle, padding.end()}};
}

PlannedNode PlanPad(const CpuNode& n) {
  const auto value = static_cast<float>(NumberAttribute(*n.node, "value"));
  std::array<std::byte, 4> element;
  kernels::Convert(element.data(), ElementTypeOf(n.inputs[0].dtype), &value,
                   kernels::ElementType::kF32, 1);
  return {.prepare = Call([shape = n.inputs[0].shape, border = BorderOf(n), element,
                           size = ElementBytes(n.inputs[0])](const NodeMemory& m) {
            kernels::Pad(m.outputs[0], m.inputs[0], shape, border.begins, border.ends,
                         element.data(), size);
          })};
}

PlannedNode PlanPadGrad(const CpuNode& n) {
  return {.shape_only = {1},
          .prepare = Call([shape = n.outputs[0].shape, border = BorderOf(n),
                           size = ElementBytes(n.outputs[0])](const NodeMemory& m) {
            kernels::PadGrad(m.outputs[0], shape, m.inputs[0], border.begins, border.ends, size);
          })};
}

// --- Gather, Scatter, TopK, Embedding -----------------------------------------------------------

// Returns INVALID_ARGUMENT, naming the first id outside [begin, end).
absl::Status CheckIds(const std::string& node, const int32_t* ids, int64_t n, int64_t begin,
                      int64_t end) {
  const int64_t bad = kernels::FirstOutOfRange(ids, n, begin, end);
  if (bad < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("node '", node, "': id ", ids[bad],
                                                 " at position ", bad, " is outside [", begin, ", ",
                                                 end, ")"));
}

kernels::GatherShape GatherShapeOf(const CpuNode& n, const TensorType& x, const TensorType& index) {
  const int64_t axis = AxisAttribute(*n.node, x.shape.size());
  return {.outer = Product(x.shape.begin(), x.shape.begin() + axis),
          .size = x.shape[axis],
          .inner = Product(x.shape.begin() + axis + 1, x.shape.end()),
          .indices = index.elements()};
}

PlannedNode PlanGather(const CpuNode& n) {
  return {.prepare =
              Call([shape = GatherShapeOf(n, n.inputs[0], n.inputs[1]),
                    size = ElementBytes(n.inputs[0]), name = n.node->name()](const NodeMemory& m) {
                absl::Status in_range =
                    CheckIds(name, Ids(m, 1), shape.indices, -shape.size, shape.size);
                if (in_range.ok())
                  kernels::Gather(m.outputs[0], m.inputs[0], Ids(m, 1), shape, size);
                return in_range;
              })};
}

PlannedNode PlanGatherGrad(const CpuNode& n) {
  return {
      .shape_only = {1},
      .prepare = Call([shape = GatherShapeOf(n, n.outputs[0], n.inputs[2])](const NodeMemory& m) {
        kernels::GatherGrad(Output(m), Input(m, 0), Ids(m, 2), shape);
      })};
}

kernels::IndexedElements IndexedElementsOf(const CpuNode& n, const TensorType& x,
                                           const TensorType& index) {
  return {x.shape, index.shape, AxisAttribute(*n.node, x.shape.size())};
}

absl::Status CheckElementIds(const std::string& node, const int32_t* ids,
                             const kernels::IndexedElements& elements) {
  return CheckIds(node, ids, elements.indices(), -elements.size(), elements.size());
}

PlannedNode PlanGatherElements(const CpuNode& n) {
  return {.prepare =
              Call([elements = IndexedElementsOf(n, n.inputs[0], n.inputs[1]),
                    size = ElementBytes(n.inputs[0]), name = n.node->name()](const NodeMemory& m) {
                absl::Status in_range = CheckElementIds(name, Ids(m, 1), elements);
                if (in_range.ok()) {
                  kernels::GatherElements(m.outputs[0], m.inputs[0], Ids(m, 1), elements, size);
                }
                return in_range;
              })};
}

PlannedNode PlanGatherElementsGrad(const CpuNode& n) {
  return {.shape_only = {1},
          .prepare = Call(
              [elements = IndexedElementsOf(n, n.outputs[0], n.inputs[2])](const NodeMemory& m) {
                kernels::GatherElementsGrad(Output(m), Input(m, 0), Ids(m, 2), elements);
              })};
}

bool AddsUpdates(const CpuNode& n) { return WordAttribute(*n.node, "reduction") == "add"; }

// Inputs: data, index, updates. Elements have four bytes.
PlannedNode PlanScatterElements(const CpuNode& n) {
  return {.prepare = Call([elements = IndexedElementsOf(n, n.inputs[0], n.inputs[1]),
                           adds = AddsUpdates(n), is_integer = n.inputs[0].dtype == v1::DTYPE_I32,
                           name = n.node->name()](const NodeMemory& m) {
            absl::Status in_range = CheckElementIds(name, Ids(m, 1), elements);
            if (!in_range.ok()) return in_range;
            if (!adds) {
              kernels::ScatterElements(m.outputs[0], m.inputs[0], Ids(m, 1), m.inputs[2], elements);
            } else if (is_integer) {
              kernels::ScatterElementsAdd(reinterpret_cast<int32_t*>(m.outputs[0]), Ids(m, 0),
                                          Ids(m, 1), Ids(m, 2), elements);
            } else {
              kernels::ScatterElementsAdd(Output(m), Input(m, 0), Ids(m, 1), Input(m, 2), elements);
            }
            return absl::OkStatus();
          })};
}

PlannedNode PlanScatterElementsGradData(const CpuNode& n) {
  if (AddsUpdates(n)) return PlanAlias(n, {1});
  return {.prepare = Call(
              [elements = IndexedElementsOf(n, n.outputs[0], n.inputs[1])](const NodeMemory& m) {
                kernels::ScatterElementsGradData(Output(m), Input(m, 0), Ids(m, 1), elements);
              })};
}

PlannedNode PlanScatterElementsGradUpdates(const CpuNode& n) {
  const kernels::IndexedElements elements = IndexedElementsOf(n, n.inputs[0], n.inputs[1]);
  if (AddsUpdates(n)) {
    return {.prepare = Call([elements](const NodeMemory& m) {
              kernels::GatherElements(m.outputs[0], m.inputs[0], Ids(m, 1), elements,
                                      sizeof(float));
            })};
  }
  return {.workspace_bytes = elements.tensor_elements() * int64_t{sizeof(int64_t)},
          .prepare = Call([elements](const NodeMemory& m) {
            kernels::ScatterElementsGradUpdates(Output(m), Input(m, 0), Ids(m, 1), elements,
                                                reinterpret_cast<int64_t*>(m.workspace));
          })};
}

kernels::TopKShape TopKShapeOf(const CpuNode& n, const TensorType& x) {
  return {.rows = x.elements() / x.shape.back(),
          .columns = x.shape.back(),
          .chosen = IntegerAttribute(*n.node, "k"),
          .largest = IntegerAttribute(*n.node, "largest") != 0};
}

PlannedNode PlanTopK(const CpuNode& n) {
  return {.prepare = Call([shape = TopKShapeOf(n, n.inputs[0])](const NodeMemory& m) {
            kernels::TopK(Output(m), reinterpret_cast<int32_t*>(m.outputs[1]), Input(m, 0), shape);
          })};
}

PlannedNode PlanTopKGrad(const CpuNode& n) {
  return {.shape_only = {1},
          .prepare = Call([shape = TopKShapeOf(n, n.outputs[0])](const NodeMemory& m) {
            kernels::TopKGrad(Output(m), Input(m, 0), Ids(m, 2), shape);
          })};
}

kernels::EmbeddingShape EmbeddingShapeOf(const v1::Node& node, const TensorType& ids,
                                         const TensorType& table) {
  kernels::EmbeddingShape shape{
      .rows = ids.elements(), .vocabulary = table.shape[0], .channels = table.shape[1]};
  if (HasAttribute(node, "whole")) shape.first = IntegerAttribute(node, "first");
  return shape;
}

PlannedNode PlanEmbedding(const CpuNode& n) {
  return {.prepare = Call([shape = EmbeddingShapeOf(*n.node, n.inputs[0], n.inputs[1]),
                           whole = PartAttributes(*n.node, n.inputs[1].shape[0]).whole,
                           name = n.node->name()](const NodeMemory& m) {
            absl::Status in_range = CheckIds(name, Ids(m, 0), shape.rows, 0, whole);
            if (in_range.ok()) kernels::Embedding(Output(m), Ids(m, 0), Input(m, 1), shape);
            return in_range;
          })};
}

PlannedNode PlanEmbeddingGrad(const CpuNode& n) {
  return {.shape_only = {2},
          .prepare = Call(
              [shape = EmbeddingShapeOf(*n.node, n.inputs[1], n.outputs[0])](const NodeMemory& m) {
                kernels::EmbeddingGrad(Output(m), Input(m, 0), Ids(m, 1), shape);
              })};
}

}  // namespace

void AddShapeKernels(CpuKernelTable& table) {
  for (const char* op : {"Reshape", "Flatten", "Squeeze", "Unsqueeze"}) {
    table[op] = {.plan = PlanReshape, .any_type = true};
  }
  table["ReshapeGrad"] = {.plan = PlanReshapeGrad, .any_type = true};
  table["Transpose"] = {.plan = PlanTranspose, .any_type = true};
  table["TransposeGrad"] = {.plan = PlanTransposeGrad, .any_type = true};
  table["Expand"] = {PlanExpand};
  table["SampleIndex"] = {.plan = PlanSampleIndex, .any_type = true};
  table["Concat"] = {.plan = PlanJoin, .any_type = true};
  table["ConcatGrad"] = {.plan = PlanPart, .any_type = true};
  table["Split"] = {.plan = PlanPart, .any_type = true};
  table["SplitGrad"] = {.plan = PlanJoin, .any_type = true};
  table["Slice"] = {.plan = PlanSlice, .any_type = true};
  table["SliceGrad"] = {.plan = PlanSliceGrad, .any_type = true};
  table["Pad"] = {.plan = PlanPad, .any_type = true};
  table["PadGrad"] = {.plan = PlanPadGrad, .any_type = true};
  table["Gather"] = {.plan = PlanGather, .any_type = true};
  table["GatherGrad"] = {PlanGatherGrad};
  table["GatherElements"] = {.plan = PlanGatherElements, .any_type = true};
  table["GatherElementsGrad"] = {PlanGatherElementsGrad};
  table["ScatterElements"] = {PlanScatterElements};
  table["ScatterElementsGradData"] = {PlanScatterElementsGradData};
  table["ScatterElementsGradUpdates"] = {PlanScatterElementsGradUpdates};
  table["TopK"] = {PlanTopK};
  table["TopKGrad"] = {PlanTopKGrad};
  table["Embedding"] = {PlanEmbedding};
  table["EmbeddingGrad"] = {PlanEmbeddingGrad};
}

}  // namespace muster
