#include "lib/graph/zoo/graph_builder.h"

#include <cmath>
#include <numeric>

namespace muster::zoo {
namespace {

// PyTorch's momentum of running statistics.
constexpr double kStatisticMomentum = 0.1;
constexpr double kUnseenScore = -10000;

bool IsSet(const v1::Initializer& initializer) {
  return initializer.kind_case() != v1::Initializer::KIND_NOT_SET;
}

v1::Initializer OrUniformByFanIn(const v1::Initializer& initializer, int64_t fan_in) {
  return IsSet(initializer) ? initializer : UniformByFanIn(fan_in);
}

}  // namespace

v1::Initializer Constant(double value) {
  v1::Initializer initializer;
  initializer.set_constant(value);
  return initializer;
}

v1::Initializer Normal(double deviation) {
  v1::Initializer initializer;
  initializer.set_normal(deviation);
  return initializer;
}

v1::Initializer Uniform(double half_width) {
  v1::Initializer initializer;
  initializer.set_uniform(half_width);
  return initializer;
}

v1::Initializer UniformByFanIn(int64_t fan_in) {
  return Uniform(1 / std::sqrt(static_cast<double>(fan_in)));
}

v1::Initializer GlorotUniform(int64_t fan_in, int64_t fan_out) {
  return Uniform(std::sqrt(6.0 / (fan_in + fan_out)));
}

v1::Initializer HeNormal(int64_t fan_out) { return Normal(std::sqrt(2.0 / fan_out)); }

Attribute::Attribute(std::string name, const Integers& values) : name_(std::move(name)) {
  value_.mutable_integers()->mutable_values()->Add(values.begin(), values.end());
}

Attribute Attribute::Numbers(std::string name, const std::vector<double>& values) {
  Attribute attribute(std::move(name));
  attribute.value_.mutable_numbers()->mutable_values()->Add(values.begin(), values.end());
  return attribute;
}

std::string GraphBuilder::Input(const std::string& name, v1::DType dtype,
                                const Integers& sample_shape) {
  v1::GraphInput& input = *graph_.add_inputs();
  input.set_name(name);
  input.set_dtype(dtype);
  input.add_shape(-1);
  input.mutable_shape()->Add(sample_shape.begin(), sample_shape.end());
  return name;
}

std::string GraphBuilder::Parameter(const std::string& name, const Integers& shape,
                                    v1::Initializer initializer, Decay decay) {
  v1::Parameter& parameter = *graph_.add_parameters();
  parameter.set_name(name);
  parameter.mutable_shape()->Add(shape.begin(), shape.end());
  *parameter.mutable_initializer() = std::move(initializer);
  parameter.set_weight_decay(decay == Decay::kYes);
  return name;
}

std::string GraphBuilder::Node(const std::string& op, const std::vector<std::string>& inputs,
                               const std::vector<std::string>& outputs,
                               const Attributes& attributes) {
  v1::Node& node = *graph_.add_nodes();
  node.set_name(outputs.front());
  node.set_op(op);
  node.mutable_inputs()->Add(inputs.begin(), inputs.end());
  node.mutable_outputs()->Add(outputs.begin(), outputs.end());
  for (const Attribute& attribute : attributes) {
    (*node.mutable_attributes())[attribute.name()] = attribute.value();
  }
  return outputs.front();
}

std::string GraphBuilder::Scalar(const std::string& name, double value) {
  return Apply("Constant", {}, name, {{"shape", Integers{1}}, {"value", value}});
}

std::string GraphBuilder::Linear(const std::string& name, const std::string& x,
                                 const LinearOptions& options, const std::string& output) {
  std::vector<std::string> inputs = {
      x, Parameter(name + ".weight", {options.outputs, options.inputs},
                   OrUniformByFanIn(options.weight, options.inputs), Decay::kYes)};
  if (options.bias.has_value()) {
    inputs.push_back(Parameter(name + ".bias", {options.outputs},
                               OrUniformByFanIn(*options.bias, options.inputs), Decay::kNo));
  }
  return Apply("Linear", inputs, output.empty() ? name : output);
}

std::string GraphBuilder::Conv2d(const std::string& name, const std::string& x,
                                 const Conv2dOptions& options) {
  const auto [height, width] = options.kernel;
  const int64_t fan_in = options.inputs * height * width;
  std::vector<std::string> inputs = {
      x, Parameter(name + ".weight", {options.outputs, options.inputs, height, width},
                   OrUniformByFanIn(options.weight, fan_in), Decay::kYes)};
  if (options.bias.has_value()) {
    inputs.push_back(Parameter(name + ".bias", {options.outputs},
                               OrUniformByFanIn(*options.bias, fan_in), Decay::kNo));
  }
  const auto [top, left] = options.padding;
  return Apply("Conv2d", inputs, name,
               {{"strides", Integers{options.strides[0], options.strides[1]}},
                {"padding", Integers{top, left, top, left}}});
}

std::string GraphBuilder::MaxPool2d(const std::string& name, const std::string& x,
                                    const PoolOptions& options) {
  return Node("MaxPool2d", {x}, {name, name + ".state"},
              {{"kernel", Integers(2, options.kernel)},
               {"strides", Integers(2, options.stride)},
               {"padding", Integers(4, options.padding)}});
}

std::string GraphBuilder::BatchNorm(const std::string& name, const std::string& x,
                                    const BatchNormOptions& options) {
  std::optional<std::string> gain;
  if (options.gain) {
    gain = Parameter(name + ".weight", {options.channels}, Constant(1), Decay::kNo);
  }
  const std::string bias = Parameter(name + ".bias", {options.channels}, Constant(0), Decay::kNo);
  const auto statistic = [&](const std::string& suffix, double start) {
    const std::string parameter =
        Parameter(name + suffix, {options.channels}, Constant(start), Decay::kNo);
    graph_.mutable_parameters()->rbegin()->set_statistic_momentum(kStatisticMomentum);
    return parameter;
  };
  std::vector<std::string> inputs = {x, statistic(".running_mean", 0), statistic(".running_var", 1),
                                     bias};
  if (gain.has_value()) inputs.push_back(*gain);
  return Node("BatchNorm", inputs,
              {name, name + ".mean", name + ".rstd", name + ".variance", name + ".state"},
              {{"epsilon", options.epsilon}, {"synchronised", int{options.synchronised}}});
}

std::string GraphBuilder::LayerNorm(const std::string& name, const std::string& x, int64_t channels,
                                    double epsilon) {
  const std::string gain = Parameter(name + ".weight", {channels}, Constant(1), Decay::kNo);
  const std::string bias = Parameter(name + ".bias", {channels}, Constant(0), Decay::kNo);
  return Node("LayerNorm", {x, gain, bias}, {name, name + ".mean", name + ".rstd"},
              {{"epsilon", epsilon}});
}

std::string GraphBuilder::Embedding(const std::string& name, const std::string& ids, int64_t rows,
                                    int64_t channels, const v1::Initializer& initializer) {
  const std::string table = Parameter(name + ".weight", {rows, channels}, initializer, Decay::kYes);
  return Apply("Embedding", {ids, table}, name);
}

std::string GraphBuilder::PositionEmbedding(const std::string& name, const std::string& x,
                                            int64_t positions, int64_t context, int64_t channels,
                                            const v1::Initializer& initializer) {
  std::string table = Parameter(name + ".weight", {positions, channels}, initializer, Decay::kYes);
  if (context < positions) {
    table = Apply("Slice", {table}, name + ".used",
                  {{"axes", Integers{0}}, {"starts", Integers{0}}, {"ends", Integers{context}}});
  }
  return Apply("Add", {x, table}, name);
}

std::string GraphBuilder::Dropout(const std::string& x, double rate) {
  if (rate == 0) return x;
  return Apply("Dropout", {x}, x + ".dropout", {{"rate", rate}, {"salt", dropouts_++}});
}

std::string GraphBuilder::Lstm(const std::string& name, const std::string& x,
                               const LstmOptions& options) {
  const int64_t directions = options.bidirectional ? 2 : 1;
  const int64_t gates = 4 * options.channels;
  const v1::Initializer initializer = OrUniformByFanIn(options.initializer, options.channels);
  const std::string weight_ih =
      Parameter(name + ".weight_ih", {directions, gates, options.inputs}, initializer, Decay::kYes);
  const std::string weight_hh = Parameter(
      name + ".weight_hh", {directions, gates, options.channels}, initializer, Decay::kYes);
  const std::string bias =
      Parameter(name + ".bias", {directions, 2 * gates}, initializer, Decay::kNo);
  return Node("Lstm", {x, weight_ih, weight_hh, bias},
              {name, name + ".hidden", name + ".cell", name + ".state"});
}

std::string GraphBuilder::SelfAttention(const std::string& name, const std::string& x,
                                        const AttentionOptions& options) {
  const int64_t channels = options.channels;
  const std::string qkv = Linear(
      name + ".qkv", x,
      {.inputs = channels, .outputs = 3 * channels, .weight = options.weight, .bias = Constant(0)});
  if (options.dropout > 0) {
    const std::vector<std::string> parts = {name + ".query", name + ".key", name + ".value"};
    Node("Split", {qkv}, parts, {{"axis", 2}, {"sizes", Integers(3, channels)}});
    AttendInParts(name, parts, options);
  } else {
    std::vector<std::string> inputs = {qkv};
    if (!options.mask.empty()) inputs.push_back(options.mask);
    Node("SelfAttention", inputs, {name, name + ".lse"},
         {{"heads", options.heads}, {"causal", int{options.causal}}});
  }
  return Linear(
      name + ".projection", name,
      {.inputs = channels, .outputs = channels, .weight = options.projection, .bias = Constant(0)});
}

std::string GraphBuilder::CrossAttention(const std::string& name, const std::string& x,
                                         const std::string& memory,
                                         const AttentionOptions& options) {
  const int64_t channels = options.channels;
  std::vector<std::string> inputs = {
      Linear(
          name + ".query", x,
          {.inputs = channels, .outputs = channels, .weight = options.weight, .bias = Constant(0)}),
      name + ".key", name + ".value"};
  const std::string key_value = Linear(
      name + ".key_value", memory,
      {.inputs = channels, .outputs = 2 * channels, .weight = options.weight, .bias = Constant(0)});
  Node("Split", {key_value}, {name + ".key", name + ".value"},
       {{"axis", 2}, {"sizes", Integers(2, channels)}});
  if (!options.mask.empty()) inputs.push_back(options.mask);
  Node("Attention", inputs, {name, name + ".lse"}, {{"heads", options.heads}});
  return Linear(
      name + ".projection", name,
      {.inputs = channels, .outputs = channels, .weight = options.projection, .bias = Constant(0)});
}

std::string GraphBuilder::AttendInParts(const std::string& name,
                                        const std::vector<std::string>& query_key_value,
                                        const AttentionOptions& options) {
  std::vector<std::string> heads;  // [B, H, T, C / H]
  for (const std::string& part : query_key_value) {
    const std::string split =
        Apply("Reshape", {part}, part + ".split",
              {{"shape", Integers{0, 0, options.heads, options.channels / options.heads}}});
    heads.push_back(
        Apply("Transpose", {split}, part + ".heads", {{"permutation", Integers{0, 2, 1, 3}}}));
  }
  std::string scores =
      Apply("MatMul", {heads[0], heads[1]}, name + ".products", {{"transpose_b", 1}});
  const double scale = 1 / std::sqrt(static_cast<double>(options.channels / options.heads));
  scores = Apply("Mul", {scores, Scalar(name + ".scale", scale)}, name + ".scores");
  if (!options.mask.empty()) scores = Apply("Add", {scores, options.mask}, name + ".masked");
  const std::string shares = Dropout(Apply("Softmax", {scores}, name + ".shares"), options.dropout);
  const std::string found = Apply("MatMul", {shares, heads[2]}, name + ".found");
  const std::string joined =
      Apply("Transpose", {found}, name + ".joined", {{"permutation", Integers{0, 2, 1, 3}}});
  return Apply("Reshape", {joined}, name, {{"shape", Integers{0, 0, options.channels}}});
}

std::string GraphBuilder::PaddingMask(const std::string& name, const std::string& ids,
                                      const Integers& axes) {
  const std::string scores =
      Apply("Where", {ids, Scalar(name + ".token", 0), Scalar(name + ".padding", kUnseenScore)},
            name + ".scores");
  return Apply("Unsqueeze", {scores}, name, {{"axes", axes}});
}

std::string GraphBuilder::FutureMask(const std::string& name, int64_t length) {
  std::vector<double> places(length);
  std::iota(places.begin(), places.end(), 0);
  const auto line = [&](const std::string& suffix, const Integers& shape) {
    return Apply("Constant", {}, name + suffix,
                 {{"shape", shape}, Attribute::Numbers("values", places)});
  };
  const std::string distance =
      Apply("Sub", {line(".seen", {1, length}), line(".sees", {length, 1})}, name + ".distance");
  const std::string later = Apply("Relu", {distance}, name + ".later");
  return Apply("Mul", {later, Scalar(name + ".score", kUnseenScore)}, name);
}

void GraphBuilder::Classify(const std::string& logits, const std::string& target,
                            double label_smoothing) {
  Attributes attributes;
  if (label_smoothing > 0) attributes.emplace_back("label_smoothing", label_smoothing);
  SetLoss(Node("SoftmaxCrossEntropy", {logits, target}, {"loss", "loss.lse"}, attributes));
  SetLogits(logits);
  SetCorrect(Apply("CorrectCount", {logits, target}, "correct"));
}

}  // namespace muster::zoo
