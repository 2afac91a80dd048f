// Encoder and decoder of LSTM layers with attention between them, for translation.
//   Source: Wu et al., "Google's neural machine translation system", 2016, section 3, in the form
//   of the MLPerf Training 0.5 reference (NVIDIA's GNMT v2).
//
// Only the first decoder layer queries the attention, which is Bahdanau's, normalised. Unlike the
// reference, the backward direction of the first encoder layer reads the padding at the end of a
// source.
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/graph/zoo/arguments.h"
#include "lib/graph/zoo/graph_builder.h"
#include "lib/graph/zoo/models.h"
#include "lib/status/status.h"

namespace muster::zoo {
namespace {

constexpr int64_t kPadding = 0;
constexpr double kHalfWidth = 0.1;  // half width of the initial weights' distribution

class Gnmt {
 public:
  Gnmt(int64_t channels, double dropout) : graph_("gnmt"), channels_(channels), dropout_(dropout) {}

  GraphBuilder& graph() { return graph_; }

  // Returns the result of the encoder's layers. Layers 0 and 1 have no residual connection.
  std::string Encode(std::string x, int64_t layers) {
    for (int64_t i = 0; i < layers; ++i) {
      const std::string name = absl::StrCat("encoder.", i, ".");
      const std::string y = Lstm(name, x, i == 1 ? 2 * channels_ : channels_, i == 0);
      x = i < 2 ? y : graph_.Apply("Add", {x, y}, name + "residual");
    }
    return x;
  }

  // Returns the result of the decoder's layers. Every layer except the first also reads the result
  // of the attention.
  std::string Decode(std::string x, const std::string& memory, const std::string& mask,
                     int64_t layers) {
    x = Lstm("decoder.0.", x, channels_, /*bidirectional=*/false);
    const std::string found = Attend(x, memory, mask);
    for (int64_t i = 1; i < layers; ++i) {
      const std::string name = absl::StrCat("decoder.", i, ".");
      const std::string both = graph_.Apply("Concat", {x, found}, name + "concat", {{"axis", 2}});
      const std::string y = Lstm(name, both, 2 * channels_, /*bidirectional=*/false);
      x = i < 2 ? y : graph_.Apply("Add", {x, y}, name + "residual");
    }
    return x;
  }

 private:
  std::string Lstm(const std::string& block, const std::string& x, int64_t inputs,
                   bool bidirectional) {
    return graph_.Lstm(block + "lstm", graph_.Dropout(x, dropout_),
                       {.inputs = inputs,
                        .channels = channels_,
                        .bidirectional = bidirectional,
                        .initializer = Uniform(kHalfWidth)});
  }

  // Returns the attention of x[B, T, C] to memory[B, S, C]. The score of a pair is v . tanh(query +
  // key + bias) with v = scale weight / |weight|.
  std::string Attend(const std::string& x, const std::string& memory, const std::string& mask) {
    const auto projection = [&](const std::string& name, const std::string& of) {
      return graph_.Linear(name, of,
                           {.inputs = channels_,
                            .outputs = channels_,
                            .weight = Uniform(kHalfWidth),
                            .bias = std::nullopt});
    };
    const std::string query = graph_.Apply("Unsqueeze", {projection("attention.query", x)},
                                           "attention.queries", {{"axes", Integers{2}}});
    const std::string key = graph_.Apply("Unsqueeze", {projection("attention.key", memory)},
                                         "attention.keys", {{"axes", Integers{1}}});
    const std::string bias =
        graph_.Parameter("attention.bias", {channels_}, Constant(0), Decay::kNo);
    const std::string weight =
        graph_.Parameter("attention.weight", {1, channels_}, Uniform(kHalfWidth), Decay::kYes);
    const std::string scale =
        graph_.Parameter("attention.scale", {1},
                         Constant(1 / std::sqrt(static_cast<double>(channels_))), Decay::kNo);

    std::string sum = graph_.Apply(
        "Add", {query, graph_.Apply("Add", {key, bias}, "attention.biased")}, "attention.sum");
    const std::string pairs = graph_.Apply("Tanh", {sum}, "attention.pairs");
    const std::string square = graph_.Apply("Mul", {weight, weight}, "attention.square");
    sum = graph_.Apply("ReduceSum", {square}, "attention.square.sum", {{"axes", Integers{1}}});
    const std::string norm = graph_.Apply("Sqrt", {sum}, "attention.norm");
    const std::string unit = graph_.Apply("Div", {weight, norm}, "attention.unit");
    const std::string v = graph_.Apply("Mul", {unit, scale}, "attention.v");

    std::string scores = graph_.Apply("Linear", {pairs, v}, "attention.pair_scores");
    scores = graph_.Apply("Squeeze", {scores}, "attention.scores", {{"axes", Integers{3}}});
    scores = graph_.Apply("Add", {scores, mask}, "attention.masked");
    const std::string shares = graph_.Apply("Softmax", {scores}, "attention.shares");
    return graph_.Apply("MatMul", {shares, memory}, "attention");
  }

  GraphBuilder graph_;
  const int64_t channels_;
  const double dropout_;
};

}  // namespace

absl::StatusOr<v1::Graph> BuildGnmt(const v1::ZooModel& model) {
  Arguments args(model);
  const int64_t layers = args.Integer("layers", 4, kLayersMax);
  const int64_t channels = args.Integer("channels", 1024);
  const int64_t source_length = args.Integer("source_length", 50);
  const int64_t target_length = args.Integer("target_length", 50);
  const int64_t vocabulary = args.Integer("vocabulary", 32320);
  const double dropout = args.Rate("dropout", 0.2);
  const double label_smoothing = args.Rate("label_smoothing", 0.1);
  if (layers < 2) args.Refuse("layers", "must be at least 2");
  RETURN_IF_ERROR(args.Verify());

  Gnmt gnmt(channels, dropout);
  GraphBuilder& graph = gnmt.graph();
  const std::string source = graph.Input("source", v1::DTYPE_I32, {source_length});
  const std::string target_input = graph.Input("target_input", v1::DTYPE_I32, {target_length});
  const std::string target = graph.Input("target", v1::DTYPE_I32, {target_length});
  const std::string mask = graph.PaddingMask("source.mask", source, {1});
  const std::string table =
      graph.Parameter("embedding.weight", {vocabulary, channels}, Uniform(kHalfWidth), Decay::kYes);
  const std::string memory =
      gnmt.Encode(graph.Apply("Embedding", {source, table}, "encoder.embedding"), layers);
  const std::string x = gnmt.Decode(
      graph.Apply("Embedding", {target_input, table}, "decoder.embedding"), memory, mask, layers);
  const std::string logits = graph.Linear("head", x,
                                          {.inputs = channels,
                                           .outputs = vocabulary,
                                           .weight = Uniform(kHalfWidth),
                                           .bias = Uniform(kHalfWidth)},
                                          "logits");
  graph.SetLoss(graph.Node("SoftmaxCrossEntropy", {logits, target}, {"loss", "loss.lse"},
                           {{"label_smoothing", label_smoothing}, {"ignore_index", kPadding}}));
  graph.SetLogits(logits);
  return std::move(graph).Finish();
}

}  // namespace muster::zoo
