// The Transformer for translation, with one table for both embeddings and the head.
//   Source: Vaswani et al., "Attention is all you need", NeurIPS 2017, sections 3 and 5, table 3.
//
// Projections have biases and blocks end with a norm, as in torch.nn.Transformer. The norms that
// torch.nn.Transformer adds after the last blocks are not in the paper and not here.
#include <cmath>
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
namespace {

constexpr int64_t kPadding = 0;

// Returns sin(t / 10000^(c/channels)) for even c, followed by the cosine of the same angle: section
// 3.5.
std::vector<double> Sinusoids(int64_t length, int64_t channels) {
  std::vector<double> values;
  values.reserve(length * channels);
  for (int64_t t = 0; t < length; ++t) {
    for (int64_t c = 0; c < channels; ++c) {
      const double even = c - c % 2;
      const double angle = t * std::pow(10000.0, -even / channels);
      values.push_back(c % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  }
  return values;
}

class Transformer {
 public:
  struct Options {
    int64_t heads;
    int64_t channels;
    int64_t inner;
    int64_t vocabulary;
    double dropout;
  };

  explicit Transformer(const Options& options) : graph_("transformer"), options_(options) {}

  GraphBuilder& graph() { return graph_; }

  void MakeEmbedding() {
    graph_.Parameter(kTable, {options_.vocabulary, options_.channels},
                     Normal(1 / std::sqrt(static_cast<double>(options_.channels))), Decay::kYes);
    graph_.Scalar("embedding.scale", std::sqrt(static_cast<double>(options_.channels)));
  }

  std::string Embed(const std::string& name, const std::string& ids, int64_t length) {
    std::string x = graph_.Apply("Embedding", {ids, kTable}, name + ".embedding");
    x = graph_.Apply("Mul", {x, "embedding.scale"}, name + ".embedding.scaled");
    const std::string positions =
        graph_.Apply("Constant", {}, name + ".positions",
                     {{"shape", Integers{length, options_.channels}},
                      Attribute::Numbers("values", Sinusoids(length, options_.channels))});
    x = graph_.Apply("Add", {x, positions}, name + ".embedding.positioned");
    return graph_.Dropout(x, options_.dropout);
  }

  std::string EncoderBlock(const std::string& block, std::string x, const std::string& mask) {
    std::string y = graph_.SelfAttention(block + "attention", x, Attention({.mask = mask}));
    x = AddAndNorm(block + "attention", x, y);
    return AddAndNorm(block + "mlp", x, FeedForward(block + "mlp", x));
  }

  std::string DecoderBlock(const std::string& block, std::string x, const std::string& memory,
                           const std::string& memory_mask) {
    std::string y = graph_.SelfAttention(block + "attention", x, Attention({.causal = true}));
    x = AddAndNorm(block + "attention", x, y);
    y = graph_.CrossAttention(block + "source_attention", x, memory,
                              Attention({.mask = memory_mask}));
    x = AddAndNorm(block + "source_attention", x, y);
    return AddAndNorm(block + "mlp", x, FeedForward(block + "mlp", x));
  }

  std::string Logits(const std::string& x) { return graph_.Apply("Linear", {x, kTable}, "logits"); }

 private:
  static constexpr char kTable[] = "embedding.weight";

  AttentionOptions Attention(AttentionOptions options) const {
    options.channels = options_.channels;
    options.heads = options_.heads;
    options.weight = options.projection = GlorotUniform(options_.channels, options_.channels);
    return options;
  }

  std::string FeedForward(const std::string& name, const std::string& x) {
    const int64_t channels = options_.channels;
    const v1::Initializer weight = GlorotUniform(channels, options_.inner);
    const std::string y = graph_.Linear(
        name + ".expand", x,
        {.inputs = channels, .outputs = options_.inner, .weight = weight, .bias = Constant(0)});
    return graph_.Linear(
        name + ".contract", graph_.Apply("Relu", {y}, name + ".relu"),
        {.inputs = options_.inner, .outputs = channels, .weight = weight, .bias = Constant(0)});
  }

  std::string AddAndNorm(const std::string& name, const std::string& x, const std::string& y) {
    const std::string sum =
        graph_.Apply("Add", {x, graph_.Dropout(y, options_.dropout)}, name + ".residual");
    return graph_.LayerNorm(name + ".norm", sum, options_.channels);
  }

  GraphBuilder graph_;
  const Options options_;
};

}  // namespace

absl::StatusOr<v1::Graph> BuildTransformer(const v1::ZooModel& model) {
  constexpr struct {
    int64_t heads, channels;
    double dropout;
  } kSizes[] = {{8, 512, 0.1}, {16, 1024, 0.3}};
  Arguments args(model);
  const auto& size = kSizes[args.Choice("size", {"base", "big"})];
  const int64_t layers = args.Integer("layers", 6, kLayersMax);
  const int64_t heads = args.Integer("heads", size.heads);
  const int64_t channels = args.Integer("channels", size.channels);
  const int64_t inner = args.Integer("inner", 4 * channels);
  const int64_t source_length = args.Integer("source_length", 64);
  const int64_t target_length = args.Integer("target_length", 64);
  const int64_t vocabulary = args.Integer("vocabulary", 37000);
  const double dropout = args.Rate("dropout", size.dropout);
  const double label_smoothing = args.Rate("label_smoothing", 0.1);
  args.RequireDivides("heads", heads, "channels", channels);
  RETURN_IF_ERROR(args.Verify());

  Transformer transformer({.heads = heads,
                           .channels = channels,
                           .inner = inner,
                           .vocabulary = vocabulary,
                           .dropout = dropout});
  GraphBuilder& graph = transformer.graph();
  const std::string source = graph.Input("source", v1::DTYPE_I32, {source_length});
  const std::string target_input = graph.Input("target_input", v1::DTYPE_I32, {target_length});
  const std::string target = graph.Input("target", v1::DTYPE_I32, {target_length});
  const std::string mask = graph.PaddingMask("source.mask", source, {1, 2});
  transformer.MakeEmbedding();
  std::string memory = transformer.Embed("encoder", source, source_length);
  for (int64_t i = 0; i < layers; ++i) {
    memory = transformer.EncoderBlock(absl::StrCat("encoder.", i, "."), memory, mask);
  }
  std::string x = transformer.Embed("decoder", target_input, target_length);
  for (int64_t i = 0; i < layers; ++i) {
    x = transformer.DecoderBlock(absl::StrCat("decoder.", i, "."), x, memory, mask);
  }
  const std::string logits = transformer.Logits(x);
  graph.SetLoss(graph.Node("SoftmaxCrossEntropy", {logits, target}, {"loss", "loss.lse"},
                           {{"label_smoothing", label_smoothing}, {"ignore_index", kPadding}}));
  graph.SetLogits(logits);
  return std::move(graph).Finish();
}

}  // namespace muster::zoo
