// A language model of stacked LSTM layers with dropout between them; every window starts from
// zeros.
//   Source: Zaremba, Sutskever, Vinyals, "Recurrent neural network regularization", 2014, section
//   4.1, the medium model; parameters as in PyTorch's examples/word_language_model (two biases).
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/graph/zoo/arguments.h"
#include "lib/graph/zoo/graph_builder.h"
#include "lib/graph/zoo/models.h"
#include "lib/status/status.h"

namespace muster::zoo {

absl::StatusOr<v1::Graph> BuildLstmLm(const v1::ZooModel& model) {
  Arguments args(model);
  const int64_t layers = args.Integer("layers", 2, kLayersMax);
  const int64_t channels = args.Integer("channels", 650);
  const int64_t context = args.Integer("context", 35);
  const int64_t vocabulary = args.Integer("vocabulary", 10000);
  const bool tied = args.Boolean("tied", false);
  const double dropout = args.Rate("dropout", 0.5);
  RETURN_IF_ERROR(args.Verify());

  const v1::Initializer weight = Uniform(0.05);
  GraphBuilder graph("lstm_lm");
  const std::string input = graph.Input("input", v1::DTYPE_I32, {context});
  const std::string target = graph.Input("target", v1::DTYPE_I32, {context});
  std::string x = graph.Embedding("embedding", input, vocabulary, channels, weight);
  for (int64_t i = 0; i < layers; ++i) {
    x = graph.Lstm(absl::StrCat("layers.", i, ".lstm"), graph.Dropout(x, dropout),
                   {.inputs = channels, .channels = channels, .initializer = weight});
  }
  x = graph.Dropout(x, dropout);
  const std::string head =
      tied ? "embedding.weight"
           : graph.Parameter("head.weight", {vocabulary, channels}, weight, Decay::kYes);
  const std::string bias = graph.Parameter("head.bias", {vocabulary}, Constant(0), Decay::kNo);
  const std::string logits = graph.Apply("Linear", {x, head, bias}, "logits");
  graph.SetLoss(graph.Node("SoftmaxCrossEntropy", {logits, target}, {"loss", "loss.lse"}));
  graph.SetLogits(logits);
  return std::move(graph).Finish();
}

}  // namespace muster::zoo
