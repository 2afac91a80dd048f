#include "lib/graph/zoo.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/struct.pb.h"
#include "lib/cluster/limits.h"
#include "lib/graph/shape_inference.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kWidthMax = 1 << 24;  // of a layer: products of two stay far below 2^63
constexpr int64_t kSideMax = 1 << 16;   // of an image: so do products of three
constexpr int64_t kLayersMax = 1024;

// Reads a builder's arguments and collects every fault.
class Arguments {
 public:
  explicit Arguments(const v1::ZooModel& model) : model_(model) {}

  bool Has(const std::string& name) const { return model_.args().fields().contains(name); }

  // 1 to `max`.
  int64_t Integer(const std::string& name, int64_t value_if_absent, int64_t max = kWidthMax) {
    const google::protobuf::Value* value = Read(name);
    if (value == nullptr) return value_if_absent;
    return Checked(name, value->kind_case() == value->kNumberValue ? value->number_value() : NAN,
                   max);
  }

  // A comma list, or one integer; each 1 to kWidthMax. "" is the empty list.
  std::vector<int64_t> Integers(const std::string& name, std::vector<int64_t> value_if_absent) {
    const google::protobuf::Value* value = Read(name);
    if (value == nullptr) return value_if_absent;
    if (value->kind_case() != value->kStringValue) return {Integer(name, 0)};
    std::vector<int64_t> integers;
    if (value->string_value().empty()) return integers;
    for (absl::string_view item : absl::StrSplit(value->string_value(), ',')) {
      double number;
      integers.push_back(Checked(name, absl::SimpleAtod(item, &number) ? number : NAN, kWidthMax));
    }
    if (integers.size() > kLayersMax) {
      Refuse(name, absl::StrCat("has ", integers.size(), " layers, more than ", kLayersMax));
    }
    return integers;
  }

  bool Boolean(const std::string& name, bool value_if_absent) {
    const google::protobuf::Value* value = Read(name);
    if (value == nullptr) return value_if_absent;
    if (value->kind_case() != value->kBoolValue) Refuse(name, "must be true or false");
    return value->bool_value();
  }

  void Refuse(absl::string_view name, absl::string_view fault) {
    faults_.push_back(absl::StrCat("model '", model_.name(), "': argument '", name, "' ", fault));
  }

  // Faults so far, and arguments that nobody has asked for.
  absl::Status Verify() {
    std::vector<std::string> unknown;
    for (const auto& [name, value] : model_.args().fields()) {
      if (!known_.contains(name)) unknown.push_back(name);
    }
    std::ranges::sort(unknown);
    for (const std::string& name : unknown) {
      Refuse(name, absl::StrCat("is unknown; there are ", absl::StrJoin(known_in_order_, ", ")));
    }
    return faults_.empty() ? absl::OkStatus()
                           : absl::InvalidArgumentError(absl::StrJoin(faults_, "; "));
  }

 private:
  const google::protobuf::Value* Read(const std::string& name) {
    if (known_.insert(name).second) known_in_order_.push_back(name);
    auto field = model_.args().fields().find(name);
    return field == model_.args().fields().end() ? nullptr : &field->second;
  }

  // NaN stands for what is no number. Returns 1 for a fault, so that the builder can go on looking.
  int64_t Checked(const std::string& name, double number, int64_t max) {
    if (number >= 1 && number <= max && number == std::floor(number)) return number;
    Refuse(name, absl::StrCat("must be an integer from 1 to ", max,
                              std::isnan(number) ? "" : absl::StrCat(" (is ", number, ")")));
    return 1;
  }

  const v1::ZooModel& model_;
  absl::flat_hash_set<std::string> known_;
  std::vector<std::string> known_in_order_;
  std::vector<std::string> faults_;
};

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

// PyTorch's default of linear and convolution layers, weight and bias alike.
v1::Initializer UniformByFanIn(int64_t fan_in) {
  v1::Initializer initializer;
  initializer.set_uniform(1 / std::sqrt(static_cast<double>(fan_in)));
  return initializer;
}

enum class Decay { kNo, kYes };

// Appends to a graph. A node is named as its first output; each method returns that name.
class GraphBuilder {
 public:
  explicit GraphBuilder(absl::string_view name) { graph_.set_name(std::string(name)); }

  std::string Input(const std::string& name, v1::DType dtype,
                    const std::vector<int64_t>& sample_shape) {
    v1::GraphInput& input = *graph_.add_inputs();
    input.set_name(name);
    input.set_dtype(dtype);
    input.add_shape(-1);
    input.mutable_shape()->Add(sample_shape.begin(), sample_shape.end());
    return name;
  }

  std::string Parameter(const std::string& name, const std::vector<int64_t>& shape,
                        v1::Initializer initializer, Decay decay) {
    v1::Parameter& parameter = *graph_.add_parameters();
    parameter.set_name(name);
    parameter.mutable_shape()->Add(shape.begin(), shape.end());
    *parameter.mutable_initializer() = std::move(initializer);
    parameter.set_weight_decay(decay == Decay::kYes);
    return name;
  }

  v1::Node& Node(const std::string& op, const std::vector<std::string>& inputs,
                 const std::vector<std::string>& outputs) {
    v1::Node& node = *graph_.add_nodes();
    node.set_name(outputs.front());
    node.set_op(op);
    node.mutable_inputs()->Add(inputs.begin(), inputs.end());
    node.mutable_outputs()->Add(outputs.begin(), outputs.end());
    return node;
  }

  std::string Apply(const std::string& op, const std::vector<std::string>& inputs,
                    const std::string& output) {
    Node(op, inputs, {output});
    return output;
  }

  struct LinearInitializers {
    v1::Initializer weight;
    v1::Initializer bias;
  };

  // Parameters `name`.weight and `name`.bias.
  std::string Linear(const std::string& name, const std::string& x, int64_t inner, int64_t outer,
                     LinearInitializers initializers, const std::string& output) {
    const std::string weight =
        Parameter(name + ".weight", {outer, inner}, initializers.weight, Decay::kYes);
    const std::string bias = Parameter(name + ".bias", {outer}, initializers.bias, Decay::kNo);
    return Apply("Linear", {x, weight, bias}, output);
  }

  std::string Linear(const std::string& name, const std::string& x, int64_t inner, int64_t outer,
                     const std::string& output) {
    return Linear(name, x, inner, outer, {UniformByFanIn(inner), UniformByFanIn(inner)}, output);
  }

  std::string Conv2d(const std::string& name, const std::string& x, int64_t channels,
                     int64_t outputs, int64_t kernel, int64_t padding) {
    const v1::Initializer initializer = UniformByFanIn(channels * kernel * kernel);
    const std::string weight =
        Parameter(name + ".weight", {outputs, channels, kernel, kernel}, initializer, Decay::kYes);
    const std::string bias = Parameter(name + ".bias", {outputs}, initializer, Decay::kNo);
    v1::Node& node = Node("Conv2d", {x, weight, bias}, {name});
    (*node.mutable_attributes())["padding"].set_i(padding);
    return name;
  }

  std::string MaxPool2d(const std::string& name, const std::string& x, int64_t kernel) {
    (*Node("MaxPool2d", {x}, {name}).mutable_attributes())["kernel"].set_i(kernel);
    return name;
  }

  std::string LayerNorm(const std::string& name, const std::string& x, int64_t channels) {
    const std::string gain = Parameter(name + ".weight", {channels}, Constant(1), Decay::kNo);
    const std::string bias = Parameter(name + ".bias", {channels}, Constant(0), Decay::kNo);
    Node("LayerNorm", {x, gain, bias}, {name, name + ".mean", name + ".rstd"});
    return name;
  }

  void ClassificationLoss(const std::string& logits, const std::string& target) {
    Node("SoftmaxCrossEntropy", {logits, target}, {"loss", "probabilities"});
    graph_.set_loss("loss");
    graph_.set_logits(logits);
  }

  void CountCorrect(const std::string& logits, const std::string& target) {
    graph_.set_correct(Apply("CorrectCount", {logits, target}, "correct"));
  }

  void RegressionLoss(const std::string& prediction, const std::string& target) {
    graph_.set_loss(Apply("MeanSquaredError", {prediction, target}, "loss"));
  }

  v1::Graph Finish() && { return std::move(graph_); }

 private:
  v1::Graph graph_;
};

absl::StatusOr<v1::Graph> BuildLinear(const v1::ZooModel& model) {
  Arguments args(model);
  const int64_t inputs = args.Integer("inputs", 1);
  const int64_t outputs = args.Integer("outputs", 1);
  RETURN_IF_ERROR(args.Verify());

  GraphBuilder graph("linear");
  const std::string input = graph.Input("input", v1::DTYPE_F32, {inputs});
  const std::string target = graph.Input("target", v1::DTYPE_F32, {outputs});
  const v1::Initializer initializer = UniformByFanIn(inputs);
  graph.Parameter("weight", {outputs, inputs}, initializer, Decay::kYes);
  graph.Parameter("bias", {outputs}, initializer, Decay::kNo);
  graph.RegressionLoss(graph.Apply("Linear", {input, "weight", "bias"}, "prediction"), target);
  return std::move(graph).Finish();
}

absl::StatusOr<v1::Graph> BuildMlp(const v1::ZooModel& model) {
  Arguments args(model);
  const int64_t channels = args.Integer("channels", 1, kSideMax);
  const int64_t height = args.Integer("height", 1, kSideMax);
  const int64_t width = args.Integer("width", 1, kSideMax);
  const bool is_image = args.Has("height");
  const int64_t pixels = channels * height * width;
  const int64_t inputs = args.Integer("inputs", is_image ? pixels : 784);
  const std::vector<int64_t> hidden = args.Integers("hidden", {256, 128});
  const int64_t classes = args.Integer("classes", 10);
  if (args.Has("width") != is_image) {
    args.Refuse(is_image ? "height" : "width",
                "must be given together with the other side of the image");
  } else if (args.Has("channels") && !is_image) {
    args.Refuse("channels", "is for images: height and width are missing");
  }
  if (is_image && inputs != pixels) {
    args.Refuse("inputs",
                absl::StrCat("is ", inputs, " but channels x height x width is ", pixels));
  }
  RETURN_IF_ERROR(args.Verify());

  GraphBuilder graph("mlp");
  std::string x = is_image ? graph.Input("input", v1::DTYPE_F32, {channels, height, width})
                           : graph.Input("input", v1::DTYPE_F32, {inputs});
  const std::string target = graph.Input("target", v1::DTYPE_I32, {});
  if (is_image) x = graph.Apply("Flatten", {x}, "flatten");
  int64_t inner = inputs;
  for (int i = 0; i < hidden.size(); ++i) {
    const std::string layer = absl::StrCat("layers.", i);
    x = graph.Linear(layer, x, inner, hidden[i], layer);
    x = graph.Apply("Relu", {x}, layer + ".relu");
    inner = hidden[i];
  }
  x = graph.Linear(absl::StrCat("layers.", hidden.size()), x, inner, classes, "logits");
  graph.ClassificationLoss(x, target);
  graph.CountCorrect(x, target);
  return std::move(graph).Finish();
}

// Source: LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document
// recognition", Proc. IEEE 86(11), 1998, figure 2, with ReLU for tanh and max pooling for trained
// subsampling.
absl::StatusOr<v1::Graph> BuildLenet(const v1::ZooModel& model) {
  Arguments args(model);
  const int64_t classes = args.Integer("classes", 10);
  RETURN_IF_ERROR(args.Verify());

  GraphBuilder graph("lenet");
  std::string x = graph.Input("input", v1::DTYPE_F32, {1, 28, 28});
  const std::string target = graph.Input("target", v1::DTYPE_I32, {});
  x = graph.Conv2d("conv1", x, /*channels=*/1, /*outputs=*/6, /*kernel=*/5, /*padding=*/2);
  x = graph.Apply("Relu", {x}, "conv1.relu");
  x = graph.MaxPool2d("pool1", x, 2);
  x = graph.Conv2d("conv2", x, /*channels=*/6, /*outputs=*/16, /*kernel=*/5, /*padding=*/0);
  x = graph.Apply("Relu", {x}, "conv2.relu");
  x = graph.MaxPool2d("pool2", x, 2);
  x = graph.Apply("Flatten", {x}, "flatten");
  x = graph.Linear("fc1", x, 400, 120, "fc1");
  x = graph.Apply("Relu", {x}, "fc1.relu");
  x = graph.Linear("fc2", x, 120, 84, "fc2");
  x = graph.Apply("Relu", {x}, "fc2.relu");
  x = graph.Linear("fc3", x, 84, classes, "logits");
  graph.ClassificationLoss(x, target);
  graph.CountCorrect(x, target);
  return std::move(graph).Finish();
}

// Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3:
// norms before each sub-block and one at the end; weights of residual projections scaled by
// 1/sqrt(number of residual additions).
absl::StatusOr<v1::Graph> BuildGpt(const v1::ZooModel& model) {
  Arguments args(model);
  const int64_t layers = args.Integer("layers", 4, kLayersMax);
  const int64_t heads = args.Integer("heads", 4);
  const int64_t channels = args.Integer("channels", 128);
  const int64_t context = args.Integer("context", 64);
  const int64_t vocabulary = args.Integer("vocabulary", 256);
  const bool tied = args.Boolean("tied", false);
  if (channels % heads != 0) {
    args.Refuse("heads",
                absl::StrCat("is ", heads, ", which does not divide channels = ", channels));
  }
  RETURN_IF_ERROR(args.Verify());

  const v1::Initializer weights = Normal(0.02);
  const v1::Initializer residual_weights = Normal(0.02 / std::sqrt(2.0 * layers));
  const v1::Initializer zeros = Constant(0);
  GraphBuilder graph("gpt");
  const std::string input = graph.Input("input", v1::DTYPE_I32, {context});
  const std::string target = graph.Input("target", v1::DTYPE_I32, {context});
  const std::string tokens =
      graph.Parameter("token_embedding.weight", {vocabulary, channels}, weights, Decay::kYes);
  const std::string positions =
      graph.Parameter("position_embedding.weight", {context, channels}, weights, Decay::kYes);
  std::string x = graph.Apply("Embedding", {input, tokens}, "token_embedding");
  x = graph.Apply("Add", {x, positions}, "position_embedding");
  for (int i = 0; i < layers; ++i) {
    const std::string block = absl::StrCat("blocks.", i, ".");
    const std::string attention = block + "attention";
    std::string y = graph.LayerNorm(block + "norm1", x, channels);
    y = graph.Linear(attention + ".qkv", y, channels, 3 * channels, {weights, zeros},
                     attention + ".qkv");
    (*graph.Node("CausalAttention", {y}, {attention, attention + ".probabilities"})
          .mutable_attributes())["heads"]
        .set_i(heads);
    y = graph.Linear(attention + ".projection", attention, channels, channels,
                     {residual_weights, zeros}, attention + ".projection");
    x = graph.Apply("Add", {x, y}, attention + ".residual");

    const std::string mlp = block + "mlp";
    y = graph.LayerNorm(block + "norm2", x, channels);
    y = graph.Linear(mlp + ".expand", y, channels, 4 * channels, {weights, zeros}, mlp + ".expand");
    y = graph.Apply("Gelu", {y}, mlp + ".gelu");
    y = graph.Linear(mlp + ".contract", y, 4 * channels, channels, {residual_weights, zeros},
                     mlp + ".contract");
    x = graph.Apply("Add", {x, y}, mlp + ".residual");
  }
  x = graph.LayerNorm("final_norm", x, channels);
  const std::string head =
      tied ? tokens : graph.Parameter("head.weight", {vocabulary, channels}, weights, Decay::kYes);
  graph.ClassificationLoss(graph.Apply("Linear", {x, head}, "logits"), target);
  return std::move(graph).Finish();
}

absl::StatusOr<v1::Graph> Build(const v1::ModelSpec& spec) {
  if (!spec.has_zoo()) return absl::InvalidArgumentError("no model is given");
  const v1::ZooModel& model = spec.zoo();
  if (model.name() == "linear") return BuildLinear(model);
  if (model.name() == "mlp") return BuildMlp(model);
  if (model.name() == "lenet") return BuildLenet(model);
  if (model.name() == "gpt") return BuildGpt(model);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown model '", model.name(), "'; there are linear, mlp, lenet, gpt"));
}

absl::Status CheckSize(const v1::Graph& graph) {
  // A parameter that InferTypes has accepted fits into the limit, and their number is bounded: no
  // overflow.
  ASSIGN_OR_RETURN(const TensorTypes types, InferTypes(graph, /*batch=*/1));
  int64_t elements = 0;
  for (const v1::Parameter& parameter : graph.parameters())
    elements += types.at(parameter.name()).elements();
  if (elements > limits::kParameterElementsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the model has ", elements, " parameters, more than ", limits::kParameterElementsMax));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::Graph> BuildModel(const v1::ModelSpec& spec) {
  absl::StatusOr<v1::Graph> graph = Build(spec);
  if (!graph.ok()) return WithReason(graph.status(), "MODEL_INVALID");
  if (absl::Status size = CheckSize(*graph); !size.ok()) {
    return WithReason(Annotate(size, absl::StrCat("model '", spec.zoo().name(), "'")),
                      "MODEL_INVALID");
  }
  return graph;
}

}  // namespace muster
