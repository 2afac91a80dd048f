// BERT's pre-training: masked tokens and next sentence.
//   Source: Devlin, Chang, Lee, Toutanova, "BERT: pre-training of deep bidirectional transformers
//   for language understanding", NAACL 2019, sections 3 and A.2.
//
// The parameters are those of Hugging Face's BertForPreTraining and of Google's released
// checkpoints. Logits are computed at every position, as in BertForPreTraining. Attention's
// probabilities are dropped only with attention_dropout, which is 0 by default.
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

constexpr double kEpsilon = 1e-12;    // of every norm
constexpr int64_t kNotMasked = -100;  // a target that does not count
constexpr int64_t kSegments = 2;
constexpr int64_t kOrders = 2;  // the second sentence follows the first, or is random

}  // namespace

absl::StatusOr<v1::Graph> BuildBert(const v1::ZooModel& model) {
  constexpr struct { int64_t layers, heads, channels; } kSizes[] = {{12, 12, 768}, {24, 16, 1024}};
  Arguments args(model);
  const auto& size = kSizes[args.Choice("size", {"base", "large"})];
  const int64_t layers = args.Integer("layers", size.layers, kLayersMax);
  const int64_t heads = args.Integer("heads", size.heads);
  const int64_t channels = args.Integer("channels", size.channels);
  const int64_t context = args.Integer("context", 128);
  const int64_t positions = args.Integer("positions", 512);
  const int64_t vocabulary = args.Integer("vocabulary", 30522);
  const double dropout = args.Rate("dropout", 0.1);
  const double attention_dropout = args.Rate("attention_dropout", 0);
  args.RequireDivides("heads", heads, "channels", channels);
  if (positions < context) {
    args.Refuse("positions", absl::StrCat("is ", positions, ", less than context = ", context));
  }
  RETURN_IF_ERROR(args.Verify());

  const v1::Initializer weight = Normal(0.02);
  const v1::Initializer zeros = Constant(0);
  GraphBuilder graph("bert");
  const std::string tokens = graph.Input("tokens", v1::DTYPE_I32, {context});
  const std::string segments = graph.Input("segments", v1::DTYPE_I32, {context});
  const std::string masked_tokens = graph.Input("masked_tokens", v1::DTYPE_I32, {context});
  const std::string next_sentence = graph.Input("next_sentence", v1::DTYPE_I32, {});
  const std::string mask = graph.PaddingMask("mask", tokens, {1, 2});

  const auto linear = [&](const std::string& name, const std::string& x, int64_t inputs,
                          int64_t outputs) {
    return graph.Linear(name, x,
                        {.inputs = inputs, .outputs = outputs, .weight = weight, .bias = zeros});
  };
  const auto add_and_norm = [&](const std::string& name, const std::string& x,
                                const std::string& y) {
    const std::string sum = graph.Apply("Add", {x, graph.Dropout(y, dropout)}, name + ".residual");
    return graph.LayerNorm(name + ".norm", sum, channels, kEpsilon);
  };

  std::string x = graph.Embedding("token_embedding", tokens, vocabulary, channels, weight);
  x = graph.PositionEmbedding("position_embedding", x, positions, context, channels, weight);
  x = graph.Apply("Add",
                  {x, graph.Embedding("segment_embedding", segments, kSegments, channels, weight)},
                  "embedding");
  x = graph.Dropout(graph.LayerNorm("embedding_norm", x, channels, kEpsilon), dropout);
  for (int64_t i = 0; i < layers; ++i) {
    const std::string block = absl::StrCat("blocks.", i, ".");
    std::string y = graph.SelfAttention(block + "attention", x,
                                        {.channels = channels,
                                         .heads = heads,
                                         .mask = mask,
                                         .weight = weight,
                                         .projection = weight,
                                         .dropout = attention_dropout});
    x = add_and_norm(block + "attention", x, y);
    y = linear(block + "mlp.expand", x, channels, 4 * channels);
    y = graph.Apply("Gelu", {y}, block + "mlp.gelu", {{"exact", 1}});
    y = linear(block + "mlp.contract", y, 4 * channels, channels);
    x = add_and_norm(block + "mlp", x, y);
  }

  std::string y = linear("masked.transform", x, channels, channels);
  y = graph.Apply("Gelu", {y}, "masked.gelu", {{"exact", 1}});
  y = graph.LayerNorm("masked.norm", y, channels, kEpsilon);
  const std::string logits =
      graph.Apply("Linear",
                  {y, "token_embedding.weight",
                   graph.Parameter("masked.bias", {vocabulary}, zeros, Decay::kNo)},
                  "logits");
  const std::string masked_loss =
      graph.Node("SoftmaxCrossEntropy", {logits, masked_tokens}, {"masked.loss", "masked.loss.lse"},
                 {{"ignore_index", kNotMasked}});

  y = graph.Apply("Slice", {x}, "first",
                  {{"axes", Integers{1}}, {"starts", Integers{0}}, {"ends", Integers{1}}});
  y = graph.Apply("Squeeze", {y}, "first.token", {{"axes", Integers{1}}});
  y = graph.Apply("Tanh", {linear("pooler", y, channels, channels)}, "pooler.tanh");
  const std::string order = linear("next_sentence.logits", y, channels, kOrders);
  const std::string order_loss = graph.Node("SoftmaxCrossEntropy", {order, next_sentence},
                                            {"next_sentence.loss", "next_sentence.loss.lse"});

  graph.SetLoss(graph.Apply("TotalLoss", {masked_loss, order_loss}, "loss"));
  graph.SetLogits(logits);
  graph.SetCorrect(graph.Apply("CorrectCount", {order, next_sentence}, "correct"));
  return std::move(graph).Finish();
}

}  // namespace muster::zoo
