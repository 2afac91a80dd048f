// NeuMF: matrix factorisation beside a multilayer perceptron, for recommendation from clicks.
//   Source: He, Liao, Zhang, Nie, Hu, Chua, "Neural collaborative filtering", WWW 2017,
//   section 3.4, with the sizes of the MLPerf Training 0.5 reference (MovieLens-20M).
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/graph/zoo/arguments.h"
#include "lib/graph/zoo/graph_builder.h"
#include "lib/graph/zoo/models.h"
#include "lib/status/status.h"

namespace muster::zoo {

absl::StatusOr<v1::Graph> BuildNcf(const v1::ZooModel& model) {
  Arguments args(model);
  const int64_t users = args.Integer("users", 138493);
  const int64_t items = args.Integer("items", 26744);
  const int64_t factors = args.Integer("factors", 64);
  const std::vector<int64_t> layers = args.Integers("layers", {256, 256, 128, 64});
  if (layers.empty() || layers[0] % 2 != 0) {
    args.Refuse("layers",
                "must begin with an even width: half of it for the user's embedding and "
                "half for the item's");
  }
  RETURN_IF_ERROR(args.Verify());

  GraphBuilder graph("ncf");
  const std::string user = graph.Input("user", v1::DTYPE_I32, {});
  const std::string item = graph.Input("item", v1::DTYPE_I32, {});
  const std::string target = graph.Input("target", v1::DTYPE_F32, {});
  const auto embed = [&](const std::string& name, const std::string& ids, int64_t rows,
                         int64_t channels) {
    return graph.Embedding(name, ids, rows, channels, Normal(0.01));
  };
  const std::string factorised = graph.Apply("Mul",
                                             {embed("mf_user_embedding", user, users, factors),
                                              embed("mf_item_embedding", item, items, factors)},
                                             "mf");
  const int64_t half = layers[0] / 2;
  std::string x = graph.Apply("Concat",
                              {embed("mlp_user_embedding", user, users, half),
                               embed("mlp_item_embedding", item, items, half)},
                              "mlp", {{"axis", 1}});
  for (size_t i = 1; i < layers.size(); ++i) {
    const std::string name = absl::StrCat("mlp.", i - 1);
    x = graph.Linear(name, x,
                     {.inputs = layers[i - 1],
                      .outputs = layers[i],
                      .weight = GlorotUniform(layers[i - 1], layers[i])});
    x = graph.Apply("Relu", {x}, name + ".relu");
  }
  x = graph.Apply("Concat", {factorised, x}, "both", {{"axis", 1}});
  const int64_t channels = factors + layers.back();
  // The weight has LeCun's uniform distribution.
  x = graph.Linear(
      "head", x, {.inputs = channels, .outputs = 1, .weight = Uniform(std::sqrt(3.0 / channels))});
  const std::string logits = graph.Apply("Squeeze", {x}, "logits", {{"axes", Integers{1}}});
  graph.SetLoss(graph.Apply("SigmoidCrossEntropy", {logits, target}, "loss"));
  graph.SetLogits(logits);
  return std::move(graph).Finish();
}

}  // namespace muster::zoo
