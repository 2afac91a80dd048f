#include "lib/engine/cpu/cpu_kernels.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "kernels/conversion.h"
#include "lib/engine/cpu/binding.h"
#include "lib/engine/element_type.h"
#include "lib/engine/memory_plan.h"
#include "lib/status/status.h"

namespace muster {
namespace {

const CpuKernelTable& Table() {
  static const CpuKernelTable& table = *[] {
    auto* built = new CpuKernelTable;
    AddMatrixKernels(*built);
    AddImageKernels(*built);
    AddNormalisationKernels(*built);
    AddElementwiseKernels(*built);
    AddReductionKernels(*built);
    AddShapeKernels(*built);
    AddSequenceKernels(*built);
    AddLossKernels(*built);
    AddCollectiveKernels(*built);
    return built;
  }();
  return table;
}

bool IsNarrow(const TensorType& type) {
  return type.dtype == v1::DTYPE_BF16 || type.dtype == v1::DTYPE_F16;
}

TensorType Widened(TensorType type) {
  if (IsNarrow(type)) type.dtype = v1::DTYPE_F32;
  return type;
}

// A bf16 or f16 tensor of a node and its f32 copy in the workspace.
struct Copy {
  int position;
  v1::DType dtype;
  int64_t places;
  int64_t workspace_offset;
};

// Runs an f32 kernel on bf16 and f16 tensors: it widens the inputs and narrows the outputs.
class WideningPlan {
 public:
  WideningPlan(const TypedNode& node, PlannedNode wide, const CpuLayouts& layouts)
      : wide_(std::move(wide)), workspace_bytes_(Aligned(wide_.workspace_bytes)) {
    auto layout = [](const std::vector<Layout>& chosen, int i) {
      return i < chosen.size() ? chosen[i] : Layout::kPlain;
    };
    for (int i = 0; i < node.inputs.size(); ++i) {
      if (!IsNarrow(node.inputs[i]) || std::ranges::count(wide_.shape_only, i) > 0) continue;
      inputs_.push_back(Reserve(i, node.inputs[i],
                                layouts.Places(node.inputs[i], layout(wide_.input_layouts, i))));
    }
    for (int i = 0; i < node.outputs.size(); ++i) {
      if (!IsNarrow(node.outputs[i])) continue;
      outputs_.push_back(Reserve(i, node.outputs[i],
                                 layouts.Places(node.outputs[i], layout(wide_.output_layouts, i))));
    }
  }

  PlannedNode Build() && {
    PlannedNode narrow = wide_;
    narrow.workspace_bytes = workspace_bytes_;
    // A narrow input may always be overwritten: it was copied before any output is written.
    for (const Copy& copy : inputs_) {
      if (std::ranges::count(narrow.overwritable, copy.position) == 0) {
        narrow.overwritable.push_back(copy.position);
      }
    }
    narrow.prepare = [plan = std::move(*this)](const NodeMemory& memory) {
      return plan.Prepare(memory);
    };
    return narrow;
  }

 private:
  static int64_t Aligned(int64_t bytes) {
    return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  }

  Copy Reserve(int position, const TensorType& type, int64_t places) {
    const int64_t offset = workspace_bytes_;
    workspace_bytes_ += Aligned(places * sizeof(float));
    return {position, type.dtype, places, offset};
  }

  NodeRun Prepare(const NodeMemory& memory) const {
    if (wide_.is_alias && memory.inputs[0] == memory.outputs[0]) return nullptr;
    NodeMemory wide = memory;
    for (const Copy& copy : inputs_) {
      wide.inputs[copy.position] = memory.workspace + copy.workspace_offset;
    }
    for (const Copy& copy : outputs_) {
      wide.outputs[copy.position] = memory.workspace + copy.workspace_offset;
    }
    return [inputs = inputs_, outputs = outputs_, memory, wide,
            run = wide_.prepare(wide)](const RunNumbers& numbers) {
      for (const Copy& copy : inputs) {
        kernels::Convert(wide.inputs[copy.position], kernels::ElementType::kF32,
                         memory.inputs[copy.position], ElementTypeOf(copy.dtype), copy.places);
      }
      if (run) {
        absl::Status status = run(numbers);
        if (!status.ok()) return status;
      }
      for (const Copy& copy : outputs) {
        kernels::Convert(memory.outputs[copy.position], ElementTypeOf(copy.dtype),
                         wide.outputs[copy.position], kernels::ElementType::kF32, copy.places);
      }
      return absl::OkStatus();
    };
  }

  PlannedNode wide_;
  int64_t workspace_bytes_;
  std::vector<Copy> inputs_;
  std::vector<Copy> outputs_;
};

}  // namespace

Layout CpuLayouts::Number(const kernels::Layout& layout) {
  auto known = std::ranges::find(layouts_, layout);
  if (known == layouts_.end()) known = layouts_.insert(known, layout);
  return static_cast<Layout>(known - layouts_.begin());
}

int64_t CpuLayouts::Places(const TensorType& type, Layout layout) const {
  return (*this)[layout].bytes(type.elements() * sizeof(float)) / sizeof(float);
}

bool HasCpuKernel(absl::string_view op) { return Table().contains(op); }

absl::StatusOr<PlannedNode> CpuKernels::Plan(const TypedNode& node) {
  const std::string& op = node.node->op();
  if (!HasCpuKernel(op)) return absl::InvalidArgumentError("the CPU has no kernel for it");
  return op == "AddLayerNorm" && IsNarrow(node.outputs[0]) ? PlanNarrowAddLayerNorm(node)
                                                           : Plan(op, node);
}

PlannedNode CpuKernels::Plan(absl::string_view op, const TypedNode& node) {
  const CpuKernel& kernel = Table().at(op);
  if (kernel.any_type || (std::ranges::none_of(node.inputs, IsNarrow) &&
                          std::ranges::none_of(node.outputs, IsNarrow))) {
    return kernel.plan({node, layouts_, synchronised_devices_});
  }
  CpuNode wide{node, layouts_, synchronised_devices_};
  std::ranges::transform(node.inputs, wide.inputs.begin(), Widened);
  std::ranges::transform(node.outputs, wide.outputs.begin(), Widened);
  return WideningPlan(node, kernel.plan(wide), layouts_).Build();
}

// Plans an AddLayerNorm in 16 bits as two nodes, so that the sum is rounded before it is
// normalised. Recomputation may start from the rounded sum, and must give the same bits.
PlannedNode CpuKernels::PlanNarrowAddLayerNorm(const TypedNode& n) {
  const TensorType& sum = n.outputs[3];
  const TypedNode add{
      n.node, {n.inputs[0], n.inputs[1]}, {sum}, {Layout::kPlain, Layout::kPlain}, {}};
  TypedNode norm{n.node, {sum}, {n.outputs.begin(), n.outputs.begin() + 3}, {Layout::kPlain}, {}};
  norm.inputs.insert(norm.inputs.end(), n.inputs.begin() + 2, n.inputs.end());
  norm.layouts.resize(norm.inputs.size());
  const PlannedNode first = Plan("Add", add), second = Plan("LayerNorm", norm);
  return {
      .workspace_bytes = std::max(first.workspace_bytes, second.workspace_bytes),
      .prepare = [first, second](const NodeMemory& m) -> NodeRun {
        NodeMemory sum{{m.inputs[0], m.inputs[1]}, {m.outputs[3]}, m.workspace};
        NodeMemory norm{{m.outputs[3]}, {m.outputs.begin(), m.outputs.begin() + 3}, m.workspace};
        norm.inputs.insert(norm.inputs.end(), m.inputs.begin() + 2, m.inputs.end());
        return [add = first.prepare(sum),
                normalise = second.prepare(norm)](const RunNumbers& numbers) {
          RETURN_IF_ERROR(add(numbers));
          return normalise(numbers);
        };
      }};
}

absl::StatusOr<PlannedNode> CpuKernels::PlanReorder(const TensorType& type, Layout from,
                                                    Layout to) {
  PlannedNode plan{.input_layouts = {from}, .output_layouts = {to}};
  plan.prepare = Call([reorder = std::make_shared<kernels::Reorder>(layouts_[from], layouts_[to])](
                          const NodeMemory& m) { reorder->Run(Output(m), Input(m, 0)); });
  if (!IsNarrow(type)) return plan;
  const TypedNode node{.inputs = {type}, .outputs = {type}};
  return WideningPlan(node, std::move(plan), layouts_).Build();
}

int64_t CpuKernels::Bytes(const TensorType& type, Layout layout) {
  if (layout == Layout::kPlain) return type.bytes();
  return layouts_.Places(type, layout) * kernels::ElementBytes(ElementTypeOf(type.dtype));
}

std::function<NodeRun(const NodeMemory&)> CopyBytes(int64_t bytes) {
  return [bytes](const NodeMemory& m) -> NodeRun {
    if (m.inputs[0] == m.outputs[0]) return nullptr;
    return [m, bytes](const RunNumbers&) {
      std::memcpy(m.outputs[0], m.inputs[0], bytes);
      return absl::OkStatus();
    };
  };
}

PlannedNode PlanAlias(const CpuNode& n, std::vector<int> shape_only) {
  const bool same_shape = n.inputs[0].shape == n.outputs[0].shape;
  const Layout layout = same_shape ? n.layouts[0] : Layout::kPlain;
  PlannedNode plan{
      .output_layouts = {layout}, .shape_only = std::move(shape_only), .is_alias = true};
  plan.input_layouts.resize(n.inputs.size());
  plan.input_layouts[0] = layout;
  plan.prepare = CopyBytes(n.layout_table.Places(n.inputs[0], layout) *
                           kernels::ElementBytes(ElementTypeOf(n.inputs[0].dtype)));
  return plan;
}

Layout CommonLayout(const CpuNode& n, const std::vector<int>& inputs) {
  for (int i : inputs) {
    if (n.layouts[i] != Layout::kPlain) return n.layouts[i];
  }
  return Layout::kPlain;
}

}  // namespace muster
