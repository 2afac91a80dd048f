#include "lib/graph/lowering/lowering.h"

#include <utility>

#include "lib/graph/autodiff.h"
#include "lib/graph/lowering/dead_nodes.h"
#include "lib/graph/lowering/fusion/fusion.h"
#include "lib/graph/lowering/inference_form.h"
#include "lib/graph/lowering/precision.h"
#include "lib/graph/lowering/recomputation.h"
#include "lib/graph/lowering/sums_first.h"
#include "lib/graph/shape_inference.h"
#include "lib/graph/tensor_parallel/linear_form.h"
#include "lib/graph/tensor_parallel/split.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// The batch for which passes compare shapes. It is not 1, because a batch of 1 would broadcast.
constexpr int64_t kBatch = 2;

absl::StatusOr<v1::Graph> WithFusedAttention(v1::Graph graph, const LoweringOptions& options) {
  if (options.fuse) {
    ASSIGN_OR_RETURN(const TensorTypes types, InferTypes(graph, kBatch));
    FuseAttention(types, graph);
  }
  return graph;
}

// Returns the rank's part of the graph in training form. Only fused attention and linear layers can
// be divided.
absl::StatusOr<SplitGraph> Split(const v1::Graph& forward, const LoweringOptions& options) {
  ASSIGN_OR_RETURN(v1::Graph graph, WithFusedAttention(forward, options));
  ASSIGN_OR_RETURN(TensorTypes types, InferTypes(graph, kBatch));
  UseLinearForm(types, graph);
  ASSIGN_OR_RETURN(types, InferTypes(graph, kBatch));
  return SplitTensors(graph, types, options.tensor_parallel);
}

// Lowers attention and precision, which must come before differentiation.
absl::StatusOr<v1::Graph> LowerForward(v1::Graph whole, const LoweringOptions& options) {
  ASSIGN_OR_RETURN(v1::Graph graph, WithFusedAttention(std::move(whole), options));
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
  PutSumsFirst(graph);
  return graph;
}

}  // namespace

// Evaluation splits the training form, too. Otherwise attention without its dropout would be fused
// and divided, and need other slices of the parameters than training.
absl::StatusOr<v1::Graph> ForwardGraph(const v1::Graph& forward, const LoweringOptions& options) {
  if (options.tensor_parallel.degree == 1) return forward;
  ASSIGN_OR_RETURN(SplitGraph split, Split(forward, options));
  return std::move(split.graph);
}

absl::StatusOr<v1::Graph> TrainingGraph(const v1::Graph& forward, const LoweringOptions& options) {
  ASSIGN_OR_RETURN(v1::Graph own, ForwardGraph(forward, options));
  ASSIGN_OR_RETURN(const v1::Graph lowered, LowerForward(std::move(own), options));
  ASSIGN_OR_RETURN(v1::Graph graph, Differentiate(lowered));
  if (options.recompute) graph = Recompute(lowered, graph);
  if (options.only_loss) {
    graph.clear_logits();
    graph.clear_correct();
  }
  return Finish(std::move(graph), options);
}

absl::StatusOr<v1::Graph> InferenceGraph(const v1::Graph& forward, const LoweringOptions& options) {
  ASSIGN_OR_RETURN(const v1::Graph own, ForwardGraph(forward, options));
  ASSIGN_OR_RETURN(v1::Graph lowered, LowerForward(InferenceForm(own), options));
  return Finish(std::move(lowered), options);
}

absl::StatusOr<std::vector<ParameterSlice>> ParameterSlices(const v1::Graph& forward,
                                                            const LoweringOptions& options) {
  if (options.tensor_parallel.degree > 1) {
    ASSIGN_OR_RETURN(SplitGraph split, Split(forward, options));
    return std::move(split.slices);
  }
  ASSIGN_OR_RETURN(const TensorTypes types, InferTypes(forward, kBatch));
  std::vector<ParameterSlice> slices;
  for (const v1::Parameter& parameter : forward.parameters()) {
    slices.push_back({.run_elements = types.at(parameter.name()).elements()});
  }
  return slices;
}

}  // namespace muster
