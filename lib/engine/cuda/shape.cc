// Ops that change shapes, move elements or select elements, without computing. They take tensors of
// every type.
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/gather.h"
#include "kernels/cuda/indexed_elements.h"
#include "kernels/cuda/movement.h"
#include "kernels/cuda/reduction.h"
#include "kernels/cuda/top_k.h"
#include "lib/engine/cuda/binding.h"
#include "lib/graph/attributes.h"
#include "lib/graph/dtype.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using Shape = std::vector<int64_t>;

int ElementBytes(const TensorType& type) { return static_cast<int>(DTypeBytes(type.dtype)); }

absl::StatusOr<PlannedNode> PlanReshape(const CudaNode& node) { return PlanAlias(node); }
absl::StatusOr<PlannedNode> PlanReshapeGrad(const CudaNode& node) { return PlanAlias(node, {1}); }

// Plans one copy of a box from the first input to the first output.
PlannedNode PlanCopy(const CudaNode& node, cuda::View to, cuda::View from, Shape sizes) {
  return {.prepare = Enqueue([to = std::move(to), from = std::move(from), sizes = std::move(sizes),
                              bytes = ElementBytes(node.outputs[0]),
                              stream = node.context.stream](const NodeMemory& m) {
            return cuda::CopyBox(m.outputs[0], to, m.inputs[0], from, sizes, bytes, stream);
          })};
}

// Dimension k of y is dimension permutation[k] of x.
PlannedNode PlanPermutation(const CudaNode& node, const Shape& permutation) {
  const Shape& y = node.outputs[0].shape;
  const Shape strides = cuda::RowMajorStrides(node.shape(0));
  cuda::View from;
  for (int64_t dimension : permutation) from.strides.push_back(strides[dimension]);
  return PlanCopy(node, {0, cuda::RowMajorStrides(y)}, std::move(from), y);
}

absl::StatusOr<PlannedNode> PlanTranspose(const CudaNode& node) {
  return PlanPermutation(node, IntegersAttribute(*node.node, "permutation"));
}

absl::StatusOr<PlannedNode> PlanTransposeGrad(const CudaNode& node) {
  const Shape permutation = IntegersAttribute(*node.node, "permutation");
  Shape inverse(permutation.size());
  for (size_t k = 0; k < permutation.size(); ++k) {
    inverse[permutation[k]] = static_cast<int64_t>(k);
  }
  PlannedNode plan = PlanPermutation(node, inverse);
  plan.shape_only = {1};
  return plan;
}

absl::StatusOr<PlannedNode> PlanExpand(const CudaNode& node) {
  const Shape& x = node.shape(0);
  const Shape& y = node.outputs[0].shape;
  const std::vector<int> like = node.inputs.size() == 2 ? std::vector<int>{1} : std::vector<int>{};
  if (x == y) return PlanAlias(node, like);
  const Shape strides = cuda::RowMajorStrides(x);
  cuda::View from{0, Shape(y.size(), 0)};
  const size_t missing = y.size() - x.size();
  for (size_t d = 0; d < x.size(); ++d) {
    if (x[d] == y[d + missing]) from.strides[d + missing] = strides[d];
  }
  PlannedNode plan = PlanCopy(node, {0, cuda::RowMajorStrides(y)}, std::move(from), y);
  plan.shape_only = like;
  return plan;
}

absl::StatusOr<PlannedNode> PlanSampleIndex(const CudaNode& node) {
  return PlannedNode{.shape_only = {0},
                     .prepare = Enqueue([samples = node.outputs[0].elements(),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::FillPositions(IntegerOutput(m), samples, stream);
                     })};
}

absl::StatusOr<PlannedNode> PlanExpandGrad(const CudaNode& node) {
  const Shape& dy = node.shape(0);
  const Shape& dx = node.outputs[0].shape;
  if (dx == dy) return PlanAlias(node, {1});
  cuda::ReductionShape reduction{dy, std::vector<bool>(dy.size())};
  const size_t missing = dy.size() - dx.size();
  for (size_t d = 0; d < dy.size(); ++d) {
    reduction.reduced[d] = d < missing || (dx[d - missing] == 1 && dy[d] > 1);
  }
  return PlannedNode{.shape_only = {1},
                     .workspace_bytes = cuda::ReductionWorkspaceBytes(reduction),
                     .prepare = Enqueue([reduction, type = node.type(0),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::Sum(m.outputs[0], type, m.inputs[0], type, 1, reduction,
                                        m.workspace, stream);
                     })};
}

// --- Concat and Split ---------------------------------------------------------------------------

// The positions of a tensor's parts in it, along the node's axis.
struct Parts {
  std::vector<Shape> sizes;
  std::vector<cuda::View> places;
};

Parts PartsOf(const Shape& whole, const std::vector<TensorType>& parts, int axis, Layout layout) {
  const Shape strides = cuda::RowMajorStrides(ShapeInMemory(whole, layout));
  const int place = AxisInMemory(axis, layout);
  Parts all;
  int64_t start = 0;
  for (const TensorType& part : parts) {
    all.sizes.push_back(ShapeInMemory(part.shape, layout));
    all.places.push_back({start * strides[place], strides});
    start += part.shape[axis];
  }
  return all;
}

int AxisOf(const CudaNode& node) {
  return static_cast<int>(AxisAttribute(*node.node, static_cast<int64_t>(node.shape(0).size())));
}

// Plans Concat and SplitGrad. Images use the layout of the first part.
absl::StatusOr<PlannedNode> PlanJoin(const CudaNode& node) {
  const Layout layout = node.layouts[0];
  return PlannedNode{
      .input_layouts = std::vector<Layout>(node.inputs.size(), layout),
      .output_layouts = {layout},
      .prepare = Enqueue([parts = PartsOf(node.outputs[0].shape, node.inputs, AxisOf(node), layout),
                          bytes = ElementBytes(node.outputs[0]),
                          stream = node.context.stream](const NodeMemory& m) {
        for (size_t i = 0; i < parts.sizes.size(); ++i) {
          const cudaError_t error = cuda::CopyBox(m.outputs[0], parts.places[i], m.inputs[i],
                                                  {0, cuda::RowMajorStrides(parts.sizes[i])},
                                                  parts.sizes[i], bytes, stream);
          if (error != cudaSuccess) return error;
        }
        return cudaSuccess;
      })};
}

// Plans Split and ConcatGrad.
absl::StatusOr<PlannedNode> PlanPart(const CudaNode& node) {
  const Layout layout = node.layouts[0];
  PlannedNode plan{
      .output_layouts = std::vector<Layout>(node.outputs.size(), layout),
      .prepare = Enqueue([parts = PartsOf(node.shape(0), node.outputs, AxisOf(node), layout),
                          bytes = ElementBytes(node.inputs[0]),
                          stream = node.context.stream](const NodeMemory& m) {
        for (size_t i = 0; i < parts.sizes.size(); ++i) {
          const cudaError_t error =
              cuda::CopyBox(m.outputs[i], {0, cuda::RowMajorStrides(parts.sizes[i])}, m.inputs[0],
                            parts.places[i], parts.sizes[i], bytes, stream);
          if (error != cudaSuccess) return error;
        }
        return cudaSuccess;
      })};
  plan.input_layouts.resize(node.inputs.size());
  plan.input_layouts[0] = layout;
  for (int i = 1; i < static_cast<int>(node.inputs.size()); ++i) plan.shape_only.push_back(i);
  return plan;
}

// --- Slice and Pad ------------------------------------------------------------------------------

// A box of a tensor of shape `whole`.
struct Box {
  cuda::View place;
  Shape sizes;
};

Box SliceOf(const CudaNode& node, const Shape& whole) {
  const SliceRange range = SliceAttributes(*node.node, whole);
  const Shape strides = cuda::RowMajorStrides(whole);
  Box box{.sizes = range.lengths};
  for (size_t d = 0; d < whole.size(); ++d) {
    box.place.offset += range.starts[d] * strides[d];
    box.place.strides.push_back(range.steps[d] * strides[d]);
  }
  return box;
}

// Returns the box inside a border.
Box InsideOf(const CudaNode& node, const Shape& whole, const Shape& inside) {
  const Shape padding = IntegersAttribute(*node.node, "padding");
  Box box{.place = {0, cuda::RowMajorStrides(whole)}, .sizes = inside};
  for (size_t d = 0; d < whole.size(); ++d) box.place.offset += padding[d] * box.place.strides[d];
  return box;
}

// Fills the output with `value`, then copies the input to the box.
PlannedNode PlanFillAround(const CudaNode& node, Box box, double value) {
  return {.prepare = Enqueue([box = std::move(box), value, n = node.outputs[0].elements(),
                              type = node.output_type(0), bytes = ElementBytes(node.outputs[0]),
                              stream = node.context.stream](const NodeMemory& m) {
            const cudaError_t error = cuda::Fill(m.outputs[0], value, n, type, stream);
            if (error != cudaSuccess) return error;
            return cuda::CopyBox(m.outputs[0], box.place, m.inputs[0],
                                 {0, cuda::RowMajorStrides(box.sizes)}, box.sizes, bytes, stream);
          })};
}

PlannedNode PlanTakeOut(const CudaNode& node, Box box) {
  return PlanCopy(node, {0, cuda::RowMajorStrides(box.sizes)}, std::move(box.place), box.sizes);
}

absl::StatusOr<PlannedNode> PlanSlice(const CudaNode& node) {
  return PlanTakeOut(node, SliceOf(node, node.shape(0)));
}

absl::StatusOr<PlannedNode> PlanSliceGrad(const CudaNode& node) {
  PlannedNode plan = PlanFillAround(node, SliceOf(node, node.outputs[0].shape), 0);
  plan.shape_only = {1};
  return plan;
}

absl::StatusOr<PlannedNode> PlanPad(const CudaNode& node) {
  return PlanFillAround(node, InsideOf(node, node.outputs[0].shape, node.shape(0)),
                        NumberAttribute(*node.node, "value"));
}

absl::StatusOr<PlannedNode> PlanPadGrad(const CudaNode& node) {
  PlannedNode plan = PlanTakeOut(node, InsideOf(node, node.shape(0), node.outputs[0].shape));
  plan.shape_only = {1};
  return plan;
}

// --- Gather, Scatter, TopK, Embedding -----------------------------------------------------------

cuda::GatherShape GatherShapeOf(const CudaNode& node, const Shape& x, const TensorType& index) {
  const int64_t axis = AxisAttribute(*node.node, static_cast<int64_t>(x.size()));
  cuda::GatherShape shape = {.outer = 1,
                             .size = x[axis],
                             .inner = 1,
                             .indices = index.elements(),
                             .allows_negative = true};
  for (int64_t d = 0; d < static_cast<int64_t>(x.size()); ++d) {
    if (d < axis) shape.outer *= x[d];
    if (d > axis) shape.inner *= x[d];
  }
  return shape;
}

cuda::GatherShape EmbeddingShapeOf(const CudaNode& node, const TensorType& ids,
                                   const Shape& table) {
  cuda::GatherShape shape = {.outer = 1,
                             .size = table[0],
                             .inner = table[1],
                             .indices = ids.elements(),
                             .allows_negative = false};
  const auto [first, whole] = PartAttributes(*node.node, shape.size);
  if (whole != shape.size) {
    shape.first = first;
    shape.whole = whole;
  }
  return shape;
}

// Plans a gather from input `x` by input `index`.
PlannedNode PlanTake(const CudaNode& node, const cuda::GatherShape& shape, int x, int index) {
  return {.prepare =
              Enqueue([=, bytes = ElementBytes(node.outputs[0]), flag = node.context.out_of_range,
                       stream = node.context.stream](const NodeMemory& m) {
                return cuda::Gather(m.outputs[0], m.inputs[x], Ids(m.inputs[index]), shape, bytes,
                                    flag, stream);
              })};
}

// Plans the gradient of a gather, from dy and input `index`. `shape_only` is the other input.
PlannedNode PlanPutBack(const CudaNode& node, const cuda::GatherShape& shape, int index,
                        int shape_only) {
  return {.shape_only = {shape_only},
          .workspace_bytes = cuda::GatherGradWorkspaceBytes(shape),
          .prepare =
              Enqueue([=, type = node.type(0), stream = node.context.stream](const NodeMemory& m) {
                return cuda::GatherGrad(m.outputs[0], m.inputs[0], Ids(m.inputs[index]), type,
                                        shape, m.workspace, stream);
              })};
}

absl::StatusOr<PlannedNode> PlanGather(const CudaNode& node) {
  return PlanTake(node, GatherShapeOf(node, node.shape(0), node.inputs[1]), 0, 1);
}
absl::StatusOr<PlannedNode> PlanGatherGrad(const CudaNode& node) {
  return PlanPutBack(node, GatherShapeOf(node, node.outputs[0].shape, node.inputs[2]), 2, 1);
}
absl::StatusOr<PlannedNode> PlanEmbedding(const CudaNode& node) {
  return PlanTake(node, EmbeddingShapeOf(node, node.inputs[0], node.shape(1)), 1, 0);
}
absl::StatusOr<PlannedNode> PlanEmbeddingGrad(const CudaNode& node) {
  return PlanPutBack(node, EmbeddingShapeOf(node, node.inputs[1], node.outputs[0].shape), 1, 2);
}

// Returns INVALID_ARGUMENT if x or index is too large: the kernels count elements in 32 bits.
absl::StatusOr<cuda::IndexedElements> IndexedElementsOf(const CudaNode& node, const TensorType& x,
                                                        const TensorType& index) {
  for (const TensorType& tensor : {x, index}) {
    if (tensor.elements() > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a tensor of ", tensor.elements(),
                       " elements; on a GPU those by index have fewer than 2^31"));
    }
  }
  return cuda::IndexedElements(x.shape, index.shape,
                               AxisAttribute(*node.node, static_cast<int64_t>(x.shape.size())));
}

absl::StatusOr<PlannedNode> PlanGatherElements(const CudaNode& node) {
  ASSIGN_OR_RETURN(const cuda::IndexedElements elements,
                   IndexedElementsOf(node, node.inputs[0], node.inputs[1]));
  return PlannedNode{.prepare = Enqueue([elements, bytes = ElementBytes(node.outputs[0]),
                                         flag = node.context.out_of_range,
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::GatherElements(m.outputs[0], m.inputs[0], Ids(m.inputs[1]),
                                                   elements, bytes, flag, stream);
                     })};
}

absl::StatusOr<PlannedNode> PlanGatherElementsGrad(const CudaNode& node) {
  ASSIGN_OR_RETURN(const cuda::IndexedElements elements,
                   IndexedElementsOf(node, node.outputs[0], node.inputs[2]));
  return PlannedNode{.shape_only = {1},
                     .workspace_bytes = cuda::GatherElementsGradWorkspaceBytes(elements),
                     .prepare = Enqueue([elements, type = node.type(0),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::GatherElementsGrad(m.outputs[0], m.inputs[0], Ids(m.inputs[2]),
                                                       type, elements, m.workspace, stream);
                     })};
}

cuda::ScatterReduction ReductionOf(const CudaNode& node) {
  return WordAttribute(*node.node, "reduction") == "add" ? cuda::ScatterReduction::kAdd
                                                         : cuda::ScatterReduction::kNone;
}

// Inputs: data, index, updates.
absl::StatusOr<PlannedNode> PlanScatterElements(const CudaNode& node) {
  ASSIGN_OR_RETURN(const cuda::IndexedElements elements,
                   IndexedElementsOf(node, node.inputs[0], node.inputs[1]));
  const cuda::ScatterReduction reduction = ReductionOf(node);
  return PlannedNode{
      .workspace_bytes = cuda::ScatterElementsWorkspaceBytes(elements, reduction),
      .prepare =
          Enqueue([elements, reduction, type = node.type(0), flag = node.context.out_of_range,
                   stream = node.context.stream](const NodeMemory& m) {
            return cuda::ScatterElements(m.outputs[0], m.inputs[0], Ids(m.inputs[1]), m.inputs[2],
                                         type, elements, reduction, m.workspace, flag, stream);
          })};
}

absl::StatusOr<PlannedNode> PlanScatterElementsGradData(const CudaNode& node) {
  if (ReductionOf(node) == cuda::ScatterReduction::kAdd) return PlanAlias(node, {1});
  ASSIGN_OR_RETURN(const cuda::IndexedElements elements,
                   IndexedElementsOf(node, node.outputs[0], node.inputs[1]));
  return PlannedNode{.prepare = Enqueue([elements, bytes = ElementBytes(node.outputs[0]),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::ScatterElementsGradData(
                           m.outputs[0], m.inputs[0], Ids(m.inputs[1]), elements, bytes, stream);
                     })};
}

absl::StatusOr<PlannedNode> PlanScatterElementsGradUpdates(const CudaNode& node) {
  ASSIGN_OR_RETURN(const cuda::IndexedElements elements,
                   IndexedElementsOf(node, node.inputs[0], node.inputs[1]));
  const int bytes = ElementBytes(node.outputs[0]);
  if (ReductionOf(node) == cuda::ScatterReduction::kAdd) {
    return PlannedNode{.prepare = Enqueue([elements, bytes, flag = node.context.out_of_range,
                                           stream = node.context.stream](const NodeMemory& m) {
                         return cuda::GatherElements(m.outputs[0], m.inputs[0], Ids(m.inputs[1]),
                                                     elements, bytes, flag, stream);
                       })};
  }
  return PlannedNode{
      .workspace_bytes =
          cuda::ScatterElementsWorkspaceBytes(elements, cuda::ScatterReduction::kNone),
      .prepare = Enqueue([elements, bytes, stream = node.context.stream](const NodeMemory& m) {
        return cuda::ScatterElementsGradUpdates(m.outputs[0], m.inputs[0], Ids(m.inputs[1]),
                                                elements, bytes, m.workspace, stream);
      })};
}

cuda::TopKShape TopKShapeOf(const CudaNode& node, const TensorType& x) {
  return {.rows = x.elements() / x.shape.back(),
          .columns = x.shape.back(),
          .chosen = IntegerAttribute(*node.node, "k"),
          .largest = IntegerAttribute(*node.node, "largest") != 0};
}

absl::StatusOr<PlannedNode> PlanTopK(const CudaNode& node) {
  const cuda::TopKShape shape = TopKShapeOf(node, node.inputs[0]);
  return PlannedNode{.workspace_bytes = cuda::TopKWorkspaceBytes(shape),
                     .prepare = Enqueue([shape, type = node.type(0),
                                         stream = node.context.stream](const NodeMemory& m) {
                       return cuda::TopK(m.outputs[0], reinterpret_cast<int32_t*>(m.outputs[1]),
                                         m.inputs[0], type, shape, m.workspace, stream);
                     })};
}

absl::StatusOr<PlannedNode> PlanTopKGrad(const CudaNode& node) {
  return PlannedNode{
      .shape_only = {1},
      .prepare = Enqueue([shape = TopKShapeOf(node, node.outputs[0]), type = node.type(0),
                          stream = node.context.stream](const NodeMemory& m) {
        return cuda::TopKGrad(m.outputs[0], m.inputs[0], Ids(m.inputs[2]), type, shape, stream);
      })};
}

}  // namespace

void AddShapeKernels(CudaKernelTable& table) {
  table["Reshape"] = table["Flatten"] = table["Squeeze"] = table["Unsqueeze"] = PlanReshape;
  table["ReshapeGrad"] = PlanReshapeGrad;
  table["Transpose"] = PlanTranspose;
  table["TransposeGrad"] = PlanTransposeGrad;
  table["Expand"] = PlanExpand;
  table["SampleIndex"] = PlanSampleIndex;
  table["ExpandGrad"] = PlanExpandGrad;
  table["Concat"] = PlanJoin;
  table["ConcatGrad"] = PlanPart;
  table["Split"] = PlanPart;
  table["SplitGrad"] = PlanJoin;
  table["Slice"] = PlanSlice;
  table["SliceGrad"] = PlanSliceGrad;
  table["Pad"] = PlanPad;
  table["PadGrad"] = PlanPadGrad;
  table["Gather"] = PlanGather;
  table["GatherGrad"] = PlanGatherGrad;
  table["GatherElements"] = PlanGatherElements;
  table["GatherElementsGrad"] = PlanGatherElementsGrad;
  table["ScatterElements"] = PlanScatterElements;
  table["ScatterElementsGradData"] = PlanScatterElementsGradData;
  table["ScatterElementsGradUpdates"] = PlanScatterElementsGradUpdates;
  table["TopK"] = PlanTopK;
  table["TopKGrad"] = PlanTopKGrad;
  table["Embedding"] = PlanEmbedding;
  table["EmbeddingGrad"] = PlanEmbeddingGrad;
}

}  // namespace muster
