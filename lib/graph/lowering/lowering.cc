#include "lib/graph/lowering/lowering.h"

#include <utility>

#include "lib/graph/autodiff.h"
#include "lib/graph/lowering/dead_nodes.h"
#include "lib/graph/lowering/fusion/fusion.h"
#include "lib/graph/lowering/inference_form.h"
#include "lib/graph/lowering/precision.h"
#include "lib/graph/lowering/recomputation.h"
#include "lib/graph/shape_inference.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// The batch for which passes compare shapes. It is not 1, because a batch of 1 would broadcast.
constexpr int64_t kBatch = 2;

// Lowers attention and precision, which must come before differentiation.
absl::StatusOr<v1::Graph> LowerForward(v1::Graph graph, const LoweringOptions& options) {
  if (options.fuse) {
    ASSIGN_OR_RETURN(const TensorTypes types, InferTypes(graph, kBatch));
    FuseAttention(types, graph);
  }
  switch (options.precision) {
    case v1::BF16:
      return LowerPrecision(graph, v1::DTYPE_BF16);
    case v1::FP16:
      return LowerPrecision(graph, v1::DTYPE_F16);
    default:
      return graph;
  }
}

absl::StatusOr<v1::Graph> Finish(v1::Graph graph, const LoweringOptions& options) {
  RemoveDeadNodes(graph);
  if (options.fuse) {
    ASSIGN_OR_RETURN(const TensorTypes types, InferTypes(graph, kBatch));
    FuseNodes(types, graph);
  }
  return graph;
}

}  // namespace

absl::StatusOr<v1::Graph> TrainingGraph(const v1::Graph& forward, const LoweringOptions& options) {
  ASSIGN_OR_RETURN(const v1::Graph lowered, LowerForward(forward, options));
  ASSIGN_OR_RETURN(v1::Graph graph, Differentiate(lowered));
  if (options.recompute) graph = Recompute(lowered, graph);
  return Finish(std::move(graph), options);
}

absl::StatusOr<v1::Graph> InferenceGraph(const v1::Graph& forward, const LoweringOptions& options) {
  ASSIGN_OR_RETURN(v1::Graph lowered, LowerForward(InferenceForm(forward), options));
  return Finish(std::move(lowered), options);
}

}  // namespace muster
