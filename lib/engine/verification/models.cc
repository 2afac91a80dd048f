#include "lib/engine/verification/models.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/philox.h"
#include "lib/engine/reference/reference.h"
#include "lib/engine/reference/tensor.h"
#include "lib/engine/verification/sketch.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::verification {
namespace {

std::string Linear(Sketch& s, const std::string& name, const std::string& x, int64_t inputs,
                   int64_t outputs) {
  return s.Add(name, "Linear",
               {x, s.Parameter(name + ".weight", {outputs, inputs}),
                s.Parameter(name + ".bias", {outputs})});
}

std::string LayerNorm(Sketch& s, const std::string& name, const std::string& x, int64_t channels) {
  return s.Add(
      name, "LayerNorm",
      {x, s.Parameter(name + ".gain", {channels}), s.Parameter(name + ".bias", {channels})}, {}, 3);
}

std::string ConvolutionBatchNorm(Sketch& s, const std::string& name, const std::string& x,
                                 int64_t inputs, int64_t outputs) {
  const std::string y =
      s.Add(name, "Conv2d", {x, s.Parameter(name + ".weight", {outputs, inputs, 3, 3})},
            {{"padding", {1, 1, 1, 1}}});
  return s.Add(
      name + ".norm", "BatchNorm",
      {y, s.Statistic(name + ".mean", {outputs}), s.Statistic(name + ".variance", {outputs}),
       s.Parameter(name + ".bias", {outputs}), s.Parameter(name + ".gain", {outputs})},
      {}, 5);
}

std::string Dropout(Sketch& s, const std::string& x, double rate, int salt) {
  if (rate == 0) return x;
  return s.Add(x + ".dropout", "Dropout", {x}, {{"rate", rate}, {"salt", salt}});
}

constexpr int kTokens = 11, kContext = 6, kChannels = 8, kHeads = 2;

// softmax(q kᵀ / √size + mask) v with heads split by Reshape and Transpose.
std::string UnfusedAttention(Sketch& s, const std::string& block, const std::string& qkv) {
  const int size = kChannels / kHeads;
  s.Add(block + "qkv.split", "Split", {qkv},
        {{"axis", -1}, {"sizes", {kChannels, kChannels, kChannels}}}, 3);
  auto heads = [&](const std::string& part, const std::string& name) {
    const std::string split =
        s.Add(block + name + ".heads", "Reshape", {part}, {{"shape", {0, 0, kHeads, size}}});
    return s.Add(block + name, "Transpose", {split}, {{"permutation", {0, 2, 1, 3}}});
  };
  const std::string q = heads(block + "qkv.split", "q"), k = heads(block + "qkv.split.1", "k"),
                    v = heads(block + "qkv.split.2", "v");
  const std::string scale =
      s.Add(block + "scale", "Constant", {}, {{"shape", {1}}, {"value", 1 / std::sqrt(size)}});
  std::vector<int64_t> shape = {1, 1, kContext, kContext};
  const std::string mask = s.Add(block + "mask", "Constant", {}, {{"shape", shape}});
  auto& values =
      *(*s.graph.mutable_nodes()->rbegin()->mutable_attributes())["values"].mutable_numbers();
  for (int t = 0; t < kContext; ++t) {
    for (int key = 0; key < kContext; ++key) values.add_values(key > t ? -1e4 : 0);
  }
  const std::string products = s.Add(block + "products", "MatMul", {q, k}, {{"transpose_b", 1}});
  const std::string scaled = s.Add(block + "scaled", "Mul", {products, scale});
  const std::string masked = s.Add(block + "masked", "Add", {scaled, mask});
  const std::string weights = s.Add(block + "weights", "Softmax", {masked});
  const std::string mixed = s.Add(block + "mixed", "MatMul", {weights, v});
  const std::string back =
      s.Add(block + "mixed.back", "Transpose", {mixed}, {{"permutation", {0, 2, 1, 3}}});
  return s.Add(block + "attention", "Reshape", {back}, {{"shape", {0, 0, kChannels}}});
}

}  // namespace

v1::Graph Perceptron() {
  Sketch s;
  s.Input("input", {7});
  s.Ids("target", {});
  std::string x = s.Add("relu", "Relu", {Linear(s, "fc0", "input", 7, 9)});
  x = s.Add("gelu", "Gelu", {Linear(s, "fc1", x, 9, 8)});
  s.graph.set_logits(Linear(s, "fc2", x, 8, 5));
  s.graph.set_correct(s.Add("correct", "CorrectCount", {s.graph.logits(), "target"}));
  s.Loss("SoftmaxCrossEntropy", s.graph.logits(), "target", {{"label_smoothing", 0.1}});
  return s.graph;
}

v1::Graph ConvolutionNet(int64_t residuals) {
  Sketch s;
  s.Input("input", {3, 9, 8});
  s.Ids("target", {});
  std::string x =
      s.Add("stem", "Conv2d",
            {"input", s.Parameter("stem.weight", {4, 3, 3, 3}), s.Parameter("stem.bias", {4})},
            {{"padding", {1, 1, 1, 1}}});
  x = s.Add("stem.relu", "Relu", {x});
  x = s.Add("pool", "MaxPool2d", {x}, {{"kernel", {2, 2}}}, 2);
  for (int64_t block = 0; block < residuals; ++block) {
    const std::string first = absl::StrCat("conv", 2 * block), entry = x;
    const std::string second = absl::StrCat("conv", 2 * block + 1);
    const std::string residual = block == 0 ? "residual" : absl::StrCat("residual", block);
    x = s.Add(first + ".relu", "Relu", {ConvolutionBatchNorm(s, first, x, 4, 4)});
    x = s.Add(residual, "Add", {ConvolutionBatchNorm(s, second, x, 4, 4), entry});
    x = s.Add(residual + ".relu", "Relu", {x});
  }
  x = s.Add("average", "AveragePool2d", {x},
            {{"kernel", {3, 3}}, {"strides", {1, 1}}, {"padding", {1, 1, 1, 1}}});
  x = s.Add("global", "GlobalAveragePool2d", {x});
  s.graph.set_logits(Linear(s, "fc", x, 4, 5));
  s.Loss("SoftmaxCrossEntropy", s.graph.logits(), "target");
  return s.graph;
}

v1::Graph Transformer(const TransformerOptions& options) {
  Sketch s;
  s.Ids("input", {kContext});
  s.Ids("target", {kContext});
  const std::string table = s.Parameter("table", {kTokens, kChannels});
  std::string x = s.Add("embedding", "Embedding", {"input", table});
  x = s.Add("embedded", "Add", {x, s.Parameter("positions", {kContext, kChannels})});
  x = Dropout(s, x, options.dropout, 0);
  for (int64_t b = 0; b < options.blocks; ++b) {
    const std::string block = absl::StrCat("blocks.", b, ".");
    const auto norm = [&](const char* name, const std::string& of, bool last) {
      return last == options.norms_last ? LayerNorm(s, block + name, of, kChannels) : of;
    };
    std::string y = norm("norm0", x, /*last=*/false);
    y = Linear(s, block + "qkv", y, kChannels, 3 * kChannels);
    y = options.fused_attention ? s.Add(block + "attention", "SelfAttention", {y},
                                        {{"heads", kHeads}, {"causal", 1}}, 2)
                                : UnfusedAttention(s, block, y);
    y = Linear(s, block + "projection", y, kChannels, kChannels);
    x = s.Add(block + "add0", "Add", {x, Dropout(s, y, options.dropout, 2 * b + 1)});
    x = norm("norm0", x, /*last=*/true);
    y = norm("norm1", x, /*last=*/false);
    y = Linear(s, block + "expand", y, kChannels, 2 * kChannels);
    y = s.Add(block + "gelu", "Gelu", {y});
    y = Linear(s, block + "contract", y, 2 * kChannels, kChannels);
    x = s.Add(block + "add1", "Add", {x, Dropout(s, y, options.dropout, 2 * b + 2)});
    x = norm("norm1", x, /*last=*/true);
  }
  x = LayerNorm(s, "norm", x, kChannels);
  s.graph.set_logits(s.Add("logits", "Linear", {x, table}));
  s.Loss("SoftmaxCrossEntropy", "logits", "target", {{"ignore_index", -1}});
  return s.graph;
}

v1::Graph Recurrent() {
  Sketch s;
  s.Input("input", {4, 3});
  s.Input("target", {2});
  s.Input("flag", {2});
  std::string x = s.Add("lstm", "Lstm",
                        {"input", s.Parameter("lstm.w", {2, 12, 3}),
                         s.Parameter("lstm.r", {2, 12, 3}), s.Parameter("lstm.bias", {2, 24})},
                        {}, 4);
  s.Add("gru", "Gru",
        {x, s.Parameter("gru.w", {1, 9, 6}), s.Parameter("gru.r", {1, 9, 3}),
         s.Parameter("gru.bias", {1, 18})},
        {}, 3);
  x = s.Add("last", "Squeeze", {"gru.1"}, {{"axes", {0}}});
  x = Linear(s, "fc", x, 3, 2);
  const std::string error = s.Add("error", "MeanSquaredError", {x, "target"});
  const std::string surprise =
      s.Add("surprise", "SigmoidCrossEntropy", {x, "flag"}, {{"weight", 0.5}});
  s.graph.set_loss(s.Add("loss", "TotalLoss", {error, surprise}));
  s.graph.set_logits(x);
  return s.graph;
}

v1::Graph LossOfItsOwn() {
  Sketch s;
  s.Input("input", {7});
  s.Input("target", {2});
  const std::string token =
      s.Add("tokens", "Expand", {s.Parameter("token", {1, 7}), "input"}, {{"shape", {-1, 0}}});
  std::string x = s.Add("marked", "Add", {"input", token});
  x = s.Add("softplus", "Softplus", {Linear(s, "fc0", x, 7, 5)});
  s.graph.set_logits(Linear(s, "fc1", x, 5, 2));
  x = s.Add("error", "Sub", {s.graph.logits(), "target"});
  x = s.Add("squares", "Mul", {x, x});
  x = s.Add("mean", "ReduceMean", {x}, {{"axes", {0, 1}}, {"keep", 0}});
  s.graph.set_loss(s.Add("loss", "BatchShare", {x}));
  return s.graph;
}

v1::Graph OddLayers() {
  constexpr int kOdd = 700;
  Sketch s;
  s.Input("input", {7});
  s.Ids("target", {});
  const std::string norm =
      s.Add("norm", "BatchNorm",
            {Linear(s, "fc0", "input", 7, kOdd), s.Statistic("norm.mean", {kOdd}),
             s.Statistic("norm.variance", {kOdd}), s.Parameter("norm.bias", {kOdd})},
            {}, 5);
  const std::string joined =
      s.Add("joined", "Concat", {Linear(s, "fc1", "input", 7, kOdd), norm}, {{"axis", 1}});
  s.Add("halves", "Split", {Linear(s, "fc2", "input", 7, kOdd)},
        {{"axis", 1}, {"sizes", {kOdd / 2, kOdd / 2}}}, 2);
  const std::string product = s.Add("product", "Mul", {"halves", "halves.1"});
  const std::string x = s.Add("features", "Concat", {joined, product}, {{"axis", 1}});
  s.graph.set_logits(Linear(s, "fc", x, 2 * kOdd + kOdd / 2, 5));
  s.Loss("SoftmaxCrossEntropy", s.graph.logits(), "target");
  return s.graph;
}

v1::Graph OddImages() {
  constexpr int kOdd = 700;
  Sketch s;
  s.Input("input", {2, 3, 7});
  s.Ids("target", {});
  std::string x = Linear(s, "fc0", "input", 7, kOdd);
  x = s.Add("conv", "Conv2d", {x, s.Parameter("conv.weight", {4, 2, 3, 3})},
            {{"padding", {1, 1, 1, 1}}});
  x = s.Add("global", "GlobalAveragePool2d", {x});
  s.graph.set_logits(Linear(s, "fc", s.Add("features", "Flatten", {x}), 4, 5));
  s.Loss("SoftmaxCrossEntropy", s.graph.logits(), "target");
  return s.graph;
}

reference::Tensors RandomTensors(const v1::Graph& graph, int64_t batch, int64_t ids, uint64_t seed,
                                 bool ignoring) {
  reference::Tensors tensors;
  auto normal = [&](int64_t i, double scale) {
    const auto words = kernels::RandomWords(seed, tensors.size(), i);
    return static_cast<double>(
        static_cast<float>(scale * kernels::StandardNormal(words[0], words[1])));
  };
  auto id = [&](int64_t i, bool is_target) {
    const auto words = kernels::RandomWords(seed, tensors.size(), i);
    return is_target && ignoring && words[1] % 5 == 0 ? -1.0 : static_cast<double>(words[0] % ids);
  };
  for (const v1::GraphInput& input : graph.inputs()) {
    reference::Shape shape(input.shape().begin(), input.shape().end());
    shape[0] = batch;
    reference::Tensor tensor = reference::Zeros(shape);
    tensor.is_integer = input.dtype() == v1::DTYPE_I32;
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      tensor.values[i] = tensor.is_integer ? id(i, input.name() == "target") : normal(i, 1);
    }
    tensors[input.name()] = tensor;
  }
  for (const v1::Parameter& parameter : graph.parameters()) {
    reference::Tensor tensor =
        reference::Zeros({parameter.shape().begin(), parameter.shape().end()});
    for (size_t i = 0; i < tensor.values.size(); ++i) tensor.values[i] = normal(i, 0.5);
    if (parameter.has_statistic_momentum()) std::ranges::fill(tensor.values, 1);
    tensors[parameter.name()] = tensor;
  }
  return tensors;
}

reference::Tensors Samples(const v1::Graph& graph, const reference::Tensors& tensors, int64_t first,
                           int64_t count) {
  reference::Tensors samples = tensors;
  for (const v1::GraphInput& input : graph.inputs()) {
    const reference::Tensor& all = tensors.at(input.name());
    reference::Tensor& part = samples[input.name()];
    const int64_t size = static_cast<int64_t>(all.values.size()) / all.shape[0];
    part.shape[0] = count;
    part.values.assign(all.values.begin() + first * size,
                       all.values.begin() + (first + count) * size);
  }
  return samples;
}

}  // namespace muster::verification
