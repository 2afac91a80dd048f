// Language models of decoder blocks with norms before each sub-block and one at the end.
//   Source: Radford et al., "Language models are unsupervised multitask learners", 2019,
//   section 2.3 and table 2: weights of residual projections are scaled by 1/sqrt(number of
//   residual additions).
//
// Sizes and rates of gpt2 are those of Hugging Face's GPT2LMHeadModel, except that
// attention_dropout is 0 by default.
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/graph/zoo/arguments.h"
#include "lib/graph/zoo/graph_builder.h"
#include "lib/graph/zoo/models.h"
#include "lib/status/status.h"

namespace muster::zoo {
namespace {

struct Shape {
  int64_t layers;
  int64_t heads;
  int64_t channels;
};

struct Defaults {
  Shape shape;
  int64_t context;
  int64_t positions;  // 0: the same as the context
  int64_t vocabulary;
  bool tied;
  double dropout;
};

// Reads the arguments that were not read from `args` yet.
absl::StatusOr<v1::Graph> Build(const std::string& name, Arguments& args,
                                const Defaults& defaults) {
  const int64_t layers = args.Integer("layers", defaults.shape.layers, kLayersMax);
  const int64_t heads = args.Integer("heads", defaults.shape.heads);
  const int64_t channels = args.Integer("channels", defaults.shape.channels);
  const int64_t context = args.Integer("context", defaults.context);
  const int64_t positions =
      args.Integer("positions", defaults.positions > 0 ? defaults.positions : context);
  const int64_t vocabulary = args.Integer("vocabulary", defaults.vocabulary);
  const bool tied = args.Boolean("tied", defaults.tied);
  const double dropout = args.Rate("dropout", defaults.dropout);
  const double attention_dropout = args.Rate("attention_dropout", 0);
  args.RequireDivides("heads", heads, "channels", channels);
  if (positions < context) {
    args.Refuse("positions", absl::StrCat("is ", positions, ", less than context = ", context));
  }
  RETURN_IF_ERROR(args.Verify());

  const v1::Initializer weight = Normal(0.02);
  const v1::Initializer residual_weight = Normal(0.02 / std::sqrt(2.0 * layers));
  const v1::Initializer zeros = Constant(0);
  GraphBuilder graph(name);
  const std::string input = graph.Input("input", v1::DTYPE_I32, {context});
  const std::string target = graph.Input("target", v1::DTYPE_I32, {context});
  std::string x = graph.Embedding("token_embedding", input, vocabulary, channels, weight);
  x = graph.PositionEmbedding("position_embedding", x, positions, context, channels, weight);
  x = graph.Dropout(x, dropout);
  AttentionOptions attention{.channels = channels,
                             .heads = heads,
                             .causal = attention_dropout == 0,
                             .weight = weight,
                             .projection = residual_weight,
                             .dropout = attention_dropout};
  if (!attention.causal) attention.mask = graph.FutureMask("future", context);
  for (int64_t i = 0; i < layers; ++i) {
    const std::string block = absl::StrCat("blocks.", i, ".");
    std::string y = graph.LayerNorm(block + "norm1", x, channels);
    y = graph.SelfAttention(block + "attention", y, attention);
    x = graph.Apply("Add", {x, graph.Dropout(y, dropout)}, block + "attention.residual");

    const std::string mlp = block + "mlp";
    y = graph.LayerNorm(block + "norm2", x, channels);
    y = graph.Linear(
        mlp + ".expand", y,
        {.inputs = channels, .outputs = 4 * channels, .weight = weight, .bias = zeros});
    y = graph.Apply("Gelu", {y}, mlp + ".gelu");
    y = graph.Linear(
        mlp + ".contract", y,
        {.inputs = 4 * channels, .outputs = channels, .weight = residual_weight, .bias = zeros});
    x = graph.Apply("Add", {x, graph.Dropout(y, dropout)}, mlp + ".residual");
  }
  x = graph.LayerNorm("final_norm", x, channels);
  const std::string head =
      tied ? "token_embedding.weight"
           : graph.Parameter("head.weight", {vocabulary, channels}, weight, Decay::kYes);
  const std::string logits = graph.Apply("Linear", {x, head}, "logits");
  graph.SetLoss(graph.Node("SoftmaxCrossEntropy", {logits, target}, {"loss", "loss.lse"}));
  graph.SetLogits(logits);
  return std::move(graph).Finish();
}

}  // namespace

absl::StatusOr<v1::Graph> BuildGpt(const v1::ZooModel& model) {
  Arguments args(model);
  return Build(model.name(), args,
               {.shape = {.layers = 4, .heads = 4, .channels = 128},
                .context = 64,
                .positions = 0,
                .vocabulary = 256,
                .tied = false,
                .dropout = 0});
}

absl::StatusOr<v1::Graph> BuildGpt2(const v1::ZooModel& model) {
  constexpr Shape kShapes[] = {{12, 12, 768}, {24, 16, 1024}, {36, 20, 1280}, {48, 25, 1600}};
  Arguments args(model);
  return Build(model.name(), args,
               {.shape = kShapes[args.Choice("size", {"124m", "350m", "774m", "1.5b"})],
                .context = 1024,
                .positions = 1024,
                .vocabulary = 50257,
                .tied = true,
                .dropout = 0.1});
}

}  // namespace muster::zoo
