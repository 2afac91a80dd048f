// Linear regression.
#include <cstdint>
#include <string>
#include <utility>

#include "lib/graph/zoo/arguments.h"
#include "lib/graph/zoo/graph_builder.h"
#include "lib/graph/zoo/models.h"
#include "lib/status/status.h"

namespace muster::zoo {

absl::StatusOr<v1::Graph> BuildLinear(const v1::ZooModel& model) {
  Arguments args(model);
  const int64_t inputs = args.Integer("inputs", 1);
  const int64_t outputs = args.Integer("outputs", 1);
  RETURN_IF_ERROR(args.Verify());

  GraphBuilder graph("linear");
  const std::string input = graph.Input("input", v1::DTYPE_F32, {inputs});
  const std::string target = graph.Input("target", v1::DTYPE_F32, {outputs});
  const std::string weight =
      graph.Parameter("weight", {outputs, inputs}, UniformByFanIn(inputs), Decay::kYes);
  const std::string bias = graph.Parameter("bias", {outputs}, UniformByFanIn(inputs), Decay::kNo);
  const std::string prediction = graph.Apply("Linear", {input, weight, bias}, "prediction");
  graph.SetLoss(graph.Apply("MeanSquaredError", {prediction, target}, "loss"));
  return std::move(graph).Finish();
}

}  // namespace muster::zoo
