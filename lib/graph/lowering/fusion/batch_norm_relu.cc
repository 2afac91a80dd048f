#include <string>
#include <utility>

#include "absl/types/span.h"
#include "glog/logging.h"
#include "lib/graph/lowering/fusion/fusion.h"
#include "lib/graph/lowering/fusion/graph_edit.h"

namespace muster {
namespace {

constexpr int kState = 4;  // output of BatchNorm

// Returns the gradient of Relu that feeds only the BatchNorm gradient `norm_gradient`; -1 if there
// is none.
int ReluGradientBefore(int norm_gradient, const std::string& relu_output, const GraphEdit& edit) {
  const std::string& dy = edit.node(norm_gradient).inputs(0);
  const int relu_gradient = edit.Maker(dy);
  const bool fits = edit.Is(relu_gradient, "ReluGrad") && edit.OnlyReader(dy) == norm_gradient &&
                    edit.node(relu_gradient).inputs(1) == relu_output;
  return fits ? relu_gradient : -1;
}

}  // namespace

// Forward and backward must be fused together: the state of BatchNormRelu includes the Relu.
void FuseBatchNormRelu(v1::Graph& graph) {
  GraphEdit edit(graph);
  for (int i = 0; i < edit.size(); ++i) {
    if (!edit.Is(i, "BatchNorm")) continue;
    const int relu = edit.OnlyReader(edit.node(i).outputs(0));
    if (!edit.Is(relu, "Relu")) continue;
    const std::string y = edit.node(relu).outputs(0);

    const absl::Span<const int> gradients = edit.Readers(edit.node(i).outputs(kState));
    if (gradients.size() > 1) continue;
    if (!gradients.empty()) {
      const int norm_gradient = gradients.front();
      const int relu_gradient = ReluGradientBefore(norm_gradient, y, edit);
      if (relu_gradient < 0) continue;
      v1::Node fused = edit.node(norm_gradient);
      fused.set_op("BatchNormReluGrad");
      fused.set_inputs(0, edit.node(relu_gradient).inputs(0));
      if (!edit.Replace({relu_gradient, norm_gradient}, std::move(fused))) continue;
    }
    v1::Node fused = edit.node(i);
    fused.set_op("BatchNormRelu");
    fused.set_outputs(0, y);
    // The inputs are those of the BatchNorm, so its position always fits.
    CHECK(edit.Replace({i, relu}, std::move(fused)));
  }
}

}  // namespace muster
