#include "lib/engine/cuda/cuda_layouts.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {
namespace {

constexpr int64_t kPadding = 64;
// The smallest dimension that is padded. Smaller products cost too little for padding to matter,
// and padding would be a large part of them.
constexpr int64_t kPaddedMin = 512;
constexpr int64_t kWhole = 8;  // 16-bit elements in 16 bytes: such rows are aligned without padding

// An op that can compute on padded tensors: its output layouts if its inputs have these layouts.
struct PaddedOp {
  absl::string_view op;
  std::vector<Layout> inputs;
  std::vector<Layout> outputs;
};

const std::vector<PaddedOp>& PaddedOps() {
  constexpr Layout kPlain = Layout::kPlain;
  static const std::vector<PaddedOp>& ops = *new std::vector<PaddedOp>{
      {"Linear", {kPlain, kPaddedRows, kPaddedRows}, {kPaddedColumns}},
      {"LinearGradInput", {kPaddedColumns, kPaddedRows}, {kPlain}},
      {"LinearGradWeight", {kPaddedColumns, kPlain}, {kPaddedRows}},
      {"LinearGradWeightBias", {kPaddedColumns, kPlain}, {kPaddedRows, kPaddedRows}},
      {"LinearGradBias", {kPaddedColumns}, {kPaddedRows}},
      {"SoftmaxCrossEntropy", {kPaddedColumns, kPlain}, {kPlain, kPlain}},
      {"SoftmaxCrossEntropyGrad", {kPaddedColumns, kPlain, kPlain}, {kPaddedColumns}},
      {"CorrectCount", {kPaddedColumns, kPlain}, {kPlain}},
  };
  return ops;
}

const PaddedOp* Find(const std::string& op) {
  for (const PaddedOp& padded : PaddedOps()) {
    if (padded.op == op) return &padded;
  }
  return nullptr;
}

}  // namespace

int64_t PaddedSize(int64_t n) { return (n + kPadding - 1) / kPadding * kPadding; }

int64_t CudaBytes(const TensorType& type, Layout layout) {
  const int64_t elements = type.elements();
  if (layout == kPaddedColumns && elements > 0) {
    return type.bytes() / type.shape.back() * PaddedSize(type.shape.back());
  }
  if (layout == kPaddedRows && elements > 0) {
    return type.bytes() / type.shape[0] * PaddedSize(type.shape[0]);
  }
  return type.bytes();
}

// f32 stays plain: a parameter in f32 may be a view into the memory of all parameters, with the
// next parameter directly behind it.
Layout CudaParameterLayout(const TensorType& type) {
  const bool is_narrow = type.dtype == v1::DTYPE_BF16 || type.dtype == v1::DTYPE_F16;
  if (!is_narrow || type.shape.empty() || type.shape.size() > 2) return Layout::kPlain;
  const int64_t rows = type.shape[0];
  return rows >= kPaddedMin && rows % kWhole != 0 ? kPaddedRows : Layout::kPlain;
}

bool CudaReadsAs(Layout from, Layout to) {
  return from == to || (from == kPaddedRows && to == Layout::kPlain);
}

bool CudaFetches(Layout layout) { return layout == Layout::kPlain || layout == kPaddedColumns; }

bool ChoosePadding(const TypedNode& node, PlannedNode& plan) {
  const PaddedOp* op = Find(node.node->op());
  if (op == nullptr) return false;
  const auto inputs = static_cast<std::ptrdiff_t>(node.inputs.size());
  for (std::ptrdiff_t i = 0; i < inputs; ++i) {
    if (op->inputs[i] != Layout::kPlain && node.layouts[i] != op->inputs[i]) return false;
  }
  plan.input_layouts.assign(op->inputs.begin(), op->inputs.begin() + inputs);
  plan.output_layouts = op->outputs;
  return true;
}

void HidePadding(TypedNode& node) {
  if (Find(node.node->op()) != nullptr) return;
  for (Layout& layout : node.layouts) {
    if (layout == kPaddedColumns || layout == kPaddedRows) layout = Layout::kPlain;
  }
}

}  // namespace muster
