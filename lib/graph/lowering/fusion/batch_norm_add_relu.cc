#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "lib/graph/lowering/fusion/fusion.h"
#include "lib/graph/lowering/fusion/graph_edit.h"

namespace muster {
namespace {

constexpr int kStateOfNorm = 4;  // output of BatchNorm

// Returns the operand of the sum that is a BatchNorm with no other reader; -1 if there is none.
int NormOperand(const v1::Node& add, const GraphEdit& edit) {
  for (int k = 0; k < 2; ++k) {
    const std::string& term = add.inputs(k);
    const int norm = edit.Maker(term);
    const bool fits = edit.Is(norm, "BatchNorm") && edit.node(norm).outputs(0) == term &&
                      edit.OnlyReader(term) >= 0;
    if (fits) return k;
  }
  return -1;
}

// Fuses ReluGrad and BatchNormGrad into one node. It still outputs the gradient of the sum, which
// is also the gradient of the other operand. If dy is a sum of two gradients, from the next block
// and from its residual, the node adds them up.
void FuseGradients(int norm_gradient, const std::string& y, GraphEdit& edit) {
  const v1::Node& norm = edit.node(norm_gradient);
  const std::string& dsum = norm.inputs(0);
  const int relu_gradient = edit.Maker(dsum);
  if (!edit.Is(relu_gradient, "ReluGrad") || edit.node(relu_gradient).inputs(1) != y) return;

  const std::string& dy = edit.node(relu_gradient).inputs(0);
  const int sum = edit.Maker(dy);
  const bool adds = edit.Is(sum, "Accumulate") && edit.node(sum).inputs_size() == 2 &&
                    edit.OnlyReader(dy) == relu_gradient;

  v1::Node fused = norm;
  fused.set_op(adds ? "AccumulateBatchNormAddReluGrad" : "BatchNormAddReluGrad");
  fused.clear_inputs();
  if (adds) {
    *fused.mutable_inputs() = edit.node(sum).inputs();
  } else {
    fused.add_inputs(dy);
  }
  fused.add_inputs(y);
  fused.mutable_inputs()->Add(norm.inputs().begin() + 1, norm.inputs().end());
  fused.clear_outputs();
  fused.add_outputs(norm.outputs(0));
  fused.add_outputs(dsum);
  fused.mutable_outputs()->Add(norm.outputs().begin() + 1, norm.outputs().end());
  std::vector<int> members = {relu_gradient, norm_gradient};
  if (adds) members.insert(members.begin(), sum);
  edit.Replace(members, std::move(fused));
}

}  // namespace

// Fuses the end of a residual block. Forward and backward are fused independently: the gradient
// reads only the Relu's output, and the state is that of BatchNorm.
void FuseBatchNormAddRelu(const TensorTypes& types, v1::Graph& graph) {
  GraphEdit edit(graph);
  for (int i = 0; i < edit.size(); ++i) {
    if (!edit.Is(i, "Add")) continue;
    const v1::Node& add = edit.node(i);
    if (types.at(add.inputs(0)) != types.at(add.inputs(1))) continue;
    const int relu = edit.OnlyReader(add.outputs(0));
    const int own = NormOperand(add, edit);
    if (!edit.Is(relu, "Relu") || own < 0) continue;
    const int norm = edit.Maker(add.inputs(own));
    const std::string y = edit.node(relu).outputs(0), state = edit.node(norm).outputs(kStateOfNorm);

    v1::Node fused = edit.node(norm);
    fused.set_op("BatchNormAddRelu");
    fused.clear_inputs();
    fused.add_inputs(edit.node(norm).inputs(0));
    fused.add_inputs(add.inputs(1 - own));
    fused.mutable_inputs()->Add(edit.node(norm).inputs().begin() + 1,
                                edit.node(norm).inputs().end());
    fused.set_outputs(0, y);
    if (!edit.Replace({norm, i, relu}, std::move(fused))) continue;

    const absl::Span<const int> gradients = edit.Readers(state);
    if (gradients.size() == 1 && edit.Is(gradients.front(), "BatchNormGrad")) {
      FuseGradients(gradients.front(), y, edit);
    }
  }
}

}  // namespace muster
