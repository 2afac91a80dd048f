// Appends operators and layers to a graph.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::zoo {

v1::Initializer Constant(double value);
v1::Initializer Normal(double deviation);
v1::Initializer Uniform(double half_width);
// PyTorch's default of linear and convolution layers, for both weight and bias.
v1::Initializer UniformByFanIn(int64_t fan_in);
//   Source: Glorot & Bengio, "Understanding the difficulty of training deep feedforward neural
//   networks", AISTATS 2010, equation 16.
v1::Initializer GlorotUniform(int64_t fan_in, int64_t fan_out);
// The default before a ReLU, by the fan-out of a convolution's weights.
//   Source: He et al., "Delving deep into rectifiers", ICCV 2015, equation 14.
v1::Initializer HeNormal(int64_t fan_out);

using Integers = std::vector<int64_t>;

// An attribute of a node: {"heads", 4}, {"epsilon", 1e-5}, {"strides", Integers{2, 2}}.
class Attribute {
 public:
  Attribute(std::string name, std::integral auto value) : name_(std::move(name)) {
    value_.set_i(value);
  }
  Attribute(std::string name, double value) : name_(std::move(name)) { value_.set_f(value); }
  Attribute(std::string name, const Integers& values);
  static Attribute Numbers(std::string name, const std::vector<double>& values);

  const std::string& name() const { return name_; }
  const v1::Attribute& value() const { return value_; }

 private:
  explicit Attribute(std::string name) : name_(std::move(name)) {}

  std::string name_;
  v1::Attribute value_;
};

using Attributes = std::vector<Attribute>;

enum class Decay { kNo, kYes };

// An initialiser that is not set means UniformByFanIn; a bias of nullopt means no bias.
struct LinearOptions {
  int64_t inputs = 0;
  int64_t outputs = 0;
  v1::Initializer weight = {};
  std::optional<v1::Initializer> bias = v1::Initializer();
};

struct Conv2dOptions {
  int64_t inputs = 0;  // channels
  int64_t outputs = 0;
  std::array<int64_t, 2> kernel = {1, 1};  // height, width
  std::array<int64_t, 2> strides = {1, 1};
  std::array<int64_t, 2> padding = {0, 0};  // on both sides
  v1::Initializer weight = {};
  std::optional<v1::Initializer> bias = v1::Initializer();
};

struct PoolOptions {
  int64_t kernel = 2;
  int64_t stride = 2;
  int64_t padding = 0;
};

struct BatchNormOptions {
  int64_t channels = 0;
  double epsilon = 1e-5;
  bool gain = true;
  bool synchronised = false;
};

struct LstmOptions {
  int64_t inputs = 0;
  int64_t channels = 0;  // channels of one direction
  bool bidirectional = false;
  v1::Initializer initializer = {};
};

struct AttentionOptions {
  int64_t channels = 0;
  int64_t heads = 0;
  bool causal = false;
  std::string mask = "";  // added to the scores; "": none
  v1::Initializer weight = {};
  v1::Initializer projection = {};  // weight of the last matrix; biases start at zero
  // Dropout of the probabilities. If above 0, SelfAttention() builds attention from its parts and
  // ignores `causal`: a causal attention passes a FutureMask() as its mask.
  double dropout = 0;
};

// A node has the name of its first output; methods that append a node return that name. A layer
// called `name` makes the tensor `name` and the parameters `name`.weight, `name`.bias, ...
class GraphBuilder {
 public:
  explicit GraphBuilder(absl::string_view name) { graph_.set_name(std::string(name)); }

  std::string Input(const std::string& name, v1::DType dtype, const Integers& sample_shape);
  std::string Parameter(const std::string& name, const Integers& shape, v1::Initializer initializer,
                        Decay decay);

  std::string Node(const std::string& op, const std::vector<std::string>& inputs,
                   const std::vector<std::string>& outputs, const Attributes& attributes = {});
  std::string Apply(const std::string& op, const std::vector<std::string>& inputs,
                    const std::string& output, const Attributes& attributes = {}) {
    return Node(op, inputs, {output}, attributes);
  }
  // A constant in f32 with one value for all elements.
  std::string Scalar(const std::string& name, double value);

  // `output` is the name of the layer's result; "": `name`.
  std::string Linear(const std::string& name, const std::string& x, const LinearOptions& options,
                     const std::string& output = "");
  std::string Conv2d(const std::string& name, const std::string& x, const Conv2dOptions& options);
  std::string MaxPool2d(const std::string& name, const std::string& x, const PoolOptions& options);
  std::string BatchNorm(const std::string& name, const std::string& x,
                        const BatchNormOptions& options);
  std::string LayerNorm(const std::string& name, const std::string& x, int64_t channels,
                        double epsilon = 1e-5);
  std::string Embedding(const std::string& name, const std::string& ids, int64_t rows,
                        int64_t channels, const v1::Initializer& initializer);
  // Adds a trained vector to each of the `context` positions of x[B, context, channels]. The table
  // has `positions` >= context vectors.
  std::string PositionEmbedding(const std::string& name, const std::string& x, int64_t positions,
                                int64_t context, int64_t channels,
                                const v1::Initializer& initializer);
  // Returns x itself if the rate is 0.
  std::string Dropout(const std::string& x, double rate);
  // The initial state is zero. The parameters are weight_ih, weight_hh and bias.
  std::string Lstm(const std::string& name, const std::string& x, const LstmOptions& options);

  // Both return the tensor `name`.projection.
  std::string SelfAttention(const std::string& name, const std::string& x,
                            const AttentionOptions& options);
  // Takes queries from x, and keys and values from `memory`, which has as many channels. It
  // ignores `causal` and `dropout`.
  std::string CrossAttention(const std::string& name, const std::string& x,
                             const std::string& memory, const AttentionOptions& options);
  // Returns an f32 mask with the shape of ids[B, T] and inserted dimensions of 1 at `axes`. It is 0
  // for a token and -10,000 for ids of 0. -10,000 is the value of Google's BERT, and f16 can hold
  // it.
  std::string PaddingMask(const std::string& name, const std::string& ids, const Integers& axes);

  // Returns an f32[length, length] mask: 0 for a position that may be seen, -10,000 times the
  // distance for a later one.
  std::string FutureMask(const std::string& name, int64_t length);

  // Adds the cross-entropy of a model that classifies each sample. Sets loss, logits and correct.
  void Classify(const std::string& logits, const std::string& target, double label_smoothing = 0);

  void SetLoss(const std::string& loss) { graph_.set_loss(loss); }
  void SetLogits(const std::string& logits) { graph_.set_logits(logits); }
  void SetCorrect(const std::string& correct) { graph_.set_correct(correct); }

  v1::Graph Finish() && { return std::move(graph_); }

 private:
  // Builds a SelfAttention of the three tensors from its parts, with dropout.
  std::string AttendInParts(const std::string& name,
                            const std::vector<std::string>& query_key_value,
                            const AttentionOptions& options);

  v1::Graph graph_;
  int dropouts_ = 0;
};

}  // namespace muster::zoo
