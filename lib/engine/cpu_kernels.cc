#include "lib/engine/cpu_kernels.h"

#include <cstring>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/convolution.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/layer_norm.h"
#include "kernels/linear.h"
#include "kernels/mean_squared_error.h"
#include "kernels/pooling.h"
#include "kernels/softmax_cross_entropy.h"

namespace muster {
namespace {

float* Input(const PlacedNode& n, int i) { return reinterpret_cast<float*>(n.input_memory[i]); }
float* OptionalInput(const PlacedNode& n, int i) {
  return i < n.input_memory.size() ? Input(n, i) : nullptr;
}
const int32_t* Ids(const PlacedNode& n, int i) {
  return reinterpret_cast<const int32_t*>(n.input_memory[i]);
}
float* Output(const PlacedNode& n, int i = 0) {
  return reinterpret_cast<float*>(n.output_memory[i]);
}
float* Workspace(const PlacedNode& n) { return reinterpret_cast<float*>(n.workspace); }

int64_t IntAttribute(const TypedNode& n, const char* name, int64_t otherwise) {
  const auto it = n.node->attributes().find(name);
  return it == n.node->attributes().end() ? otherwise : it->second.i();
}

double FloatAttribute(const TypedNode& n, const char* name, double otherwise) {
  const auto it = n.node->attributes().find(name);
  return it == n.node->attributes().end() ? otherwise : it->second.f();
}

// A run that cannot fail and does not depend on the loss scale.
template <typename F>
NodeRun Always(F f) {
  return [f](float) {
    f();
    return absl::OkStatus();
  };
}

// Rows of a matrix whose row is the last dimension.
int64_t Rows(const TensorType& type) { return type.elements() / type.shape.back(); }

absl::Status CheckIds(absl::string_view node, const int32_t* ids, int64_t n, int64_t limit) {
  const int64_t bad = kernels::FirstOutOfRange(ids, n, limit);
  if (bad < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "node '", node, "': id ", ids[bad], " at position ", bad, " is outside [0, ", limit, ")"));
}

// --- Linear -------------------------------------------------------------------------------------

kernels::LinearShape LinearShapeOf(const TensorType& x, const TensorType& y) {
  return {.rows = Rows(x), .inputs = x.shape.back(), .outputs = y.shape.back()};
}

NodeRun PrepareLinear(const PlacedNode& n) {
  return Always([y = Output(n), x = Input(n, 0), w = Input(n, 1), bias = OptionalInput(n, 2),
                 shape = LinearShapeOf(n.inputs[0], n.outputs[0])] {
    kernels::Linear(y, x, w, bias, shape);
  });
}

NodeRun PrepareLinearGradInput(const PlacedNode& n) {
  return Always([dx = Output(n), dy = Input(n, 0), w = Input(n, 1),
                 shape = LinearShapeOf(n.outputs[0], n.inputs[0])] {
    kernels::LinearGradInput(dx, dy, w, shape);
  });
}

NodeRun PrepareLinearGradWeight(const PlacedNode& n) {
  return Always([dw = Output(n), dy = Input(n, 0), x = Input(n, 1),
                 shape = LinearShapeOf(n.inputs[1], n.inputs[0])] {
    kernels::LinearGradWeight(dw, dy, x, shape);
  });
}

NodeRun PrepareLinearGradBias(const PlacedNode& n) {
  return Always(
      [db = Output(n), dy = Input(n, 0), shape = LinearShapeOf(n.inputs[0], n.inputs[0])] {
        kernels::LinearGradBias(db, dy, shape);
      });
}

// --- Convolution and pooling --------------------------------------------------------------------

kernels::Conv2dShape ConvolutionShape(const TypedNode& n, const TensorType& x,
                                      const TensorType& w) {
  return {.batch = x.shape[0],
          .channels = x.shape[1],
          .height = x.shape[2],
          .width = x.shape[3],
          .outputs = w.shape[0],
          .kernel = w.shape[2],
          .stride = IntAttribute(n, "stride", 1),
          .padding = IntAttribute(n, "padding", 0)};
}

kernels::Conv2dShape ForwardShape(const TypedNode& n) {
  return ConvolutionShape(n, n.inputs[0], n.inputs[1]);
}
kernels::Conv2dShape GradInputShape(const TypedNode& n) {
  return ConvolutionShape(n, n.inputs[2], n.inputs[1]);
}
kernels::Conv2dShape GradWeightShape(const TypedNode& n) {
  return ConvolutionShape(n, n.inputs[1], n.inputs[2]);
}

template <kernels::Conv2dShape (*Shape)(const TypedNode&)>
int64_t ConvolutionWorkspace(const TypedNode& n) {
  return Shape(n).workspace_floats() * sizeof(float);
}

NodeRun PrepareConv2d(const PlacedNode& n) {
  return Always([y = Output(n), x = Input(n, 0), w = Input(n, 1), bias = OptionalInput(n, 2),
                 workspace = Workspace(n),
                 shape = ForwardShape(n)] { kernels::Conv2d(y, x, w, bias, workspace, shape); });
}

NodeRun PrepareConv2dGradInput(const PlacedNode& n) {
  return Always(
      [dx = Output(n), dy = Input(n, 0), w = Input(n, 1), workspace = Workspace(n),
       shape = GradInputShape(n)] { kernels::Conv2dGradInput(dx, dy, w, workspace, shape); });
}

NodeRun PrepareConv2dGradWeight(const PlacedNode& n) {
  return Always(
      [dw = Output(n), dy = Input(n, 0), x = Input(n, 1), workspace = Workspace(n),
       shape = GradWeightShape(n)] { kernels::Conv2dGradWeight(dw, dy, x, workspace, shape); });
}

NodeRun PrepareConv2dGradBias(const PlacedNode& n) {
  const std::vector<int64_t>& dy = n.inputs[0].shape;
  // As a convolution by one pixel: only its outputs and their sizes count.
  const kernels::Conv2dShape shape{.batch = dy[0],
                                   .channels = 1,
                                   .height = dy[2],
                                   .width = dy[3],
                                   .outputs = dy[1],
                                   .kernel = 1};
  return Always(
      [db = Output(n), dy = Input(n, 0), shape] { kernels::Conv2dGradBias(db, dy, shape); });
}

kernels::PoolShape PoolShapeOf(const TypedNode& n, const TensorType& x) {
  const int64_t kernel = IntAttribute(n, "kernel", 0);
  return {.planes = x.shape[0] * x.shape[1],
          .height = x.shape[2],
          .width = x.shape[3],
          .kernel = kernel,
          .stride = IntAttribute(n, "stride", kernel)};
}

NodeRun PrepareMaxPool2d(const PlacedNode& n) {
  return Always([y = Output(n), x = Input(n, 0), shape = PoolShapeOf(n, n.inputs[0])] {
    kernels::MaxPool2d(y, x, shape);
  });
}

NodeRun PrepareMaxPool2dGrad(const PlacedNode& n) {
  return Always(
      [dx = Output(n), dy = Input(n, 0), x = Input(n, 1), shape = PoolShapeOf(n, n.inputs[1])] {
        kernels::MaxPool2dGrad(dx, dy, x, shape);
      });
}

// --- Elementwise --------------------------------------------------------------------------------

template <void (*Kernel)(float*, const float*, int64_t)>
NodeRun PrepareActivation(const PlacedNode& n) {
  return Always(
      [y = Output(n), x = Input(n, 0), size = n.outputs[0].elements()] { Kernel(y, x, size); });
}

template <void (*Kernel)(float*, const float*, const float*, int64_t)>
NodeRun PrepareActivationGrad(const PlacedNode& n) {
  return Always([dx = Output(n), dy = Input(n, 0), saved = Input(n, 1),
                 size = n.outputs[0].elements()] { Kernel(dx, dy, saved, size); });
}

NodeRun PrepareAdd(const PlacedNode& n) {
  const int64_t size = n.inputs[1].elements();
  return Always([y = Output(n), a = Input(n, 0), b = Input(n, 1),
                 rows = n.inputs[0].elements() / size,
                 size] { kernels::Add(y, a, b, rows, size); });
}

// Nothing to copy where the plan lets both share memory.
NodeRun PrepareCopy(const PlacedNode& n) {
  return Always([y = n.output_memory[0], x = n.input_memory[0], bytes = n.outputs[0].bytes()] {
    if (y != x) std::memcpy(y, x, bytes);
  });
}

bool IsSumOfOneRow(const TypedNode& n) { return n.inputs[0].elements() == n.outputs[0].elements(); }

NodeRun PrepareAddGrad(const PlacedNode& n) {
  if (IsSumOfOneRow(n)) return PrepareCopy(n);
  const int64_t size = n.outputs[0].elements();
  return Always([db = Output(n), dy = Input(n, 0), rows = n.inputs[0].elements() / size, size] {
    kernels::SumRows(db, dy, rows, size);
  });
}

NodeRun PrepareAccumulate(const PlacedNode& n) {
  if (n.inputs.size() == 1) return PrepareCopy(n);
  std::vector<const float*> terms;
  for (int i = 0; i < n.inputs.size(); ++i) terms.push_back(Input(n, i));
  return Always([y = Output(n), terms, size = n.outputs[0].elements()] {
    kernels::Add(y, terms[0], terms[1], 1, size);
    for (size_t i = 2; i < terms.size(); ++i) kernels::Add(y, y, terms[i], 1, size);
  });
}

// --- Embedding, layer normalisation, attention --------------------------------------------------

NodeRun PrepareEmbedding(const PlacedNode& n) {
  const kernels::EmbeddingShape shape{.rows = n.inputs[0].elements(),
                                      .vocabulary = n.inputs[1].shape[0],
                                      .channels = n.inputs[1].shape[1]};
  return [y = Output(n), ids = Ids(n, 0), table = Input(n, 1), shape,
          name = n.node->name()](float) -> absl::Status {
    absl::Status in_range = CheckIds(name, ids, shape.rows, shape.vocabulary);
    if (in_range.ok()) kernels::Embedding(y, ids, table, shape);
    return in_range;
  };
}

NodeRun PrepareEmbeddingGrad(const PlacedNode& n) {
  const kernels::EmbeddingShape shape{.rows = n.inputs[1].elements(),
                                      .vocabulary = n.outputs[0].shape[0],
                                      .channels = n.outputs[0].shape[1]};
  return Always([dtable = Output(n), dy = Input(n, 0), ids = Ids(n, 1), shape] {
    kernels::EmbeddingGrad(dtable, dy, ids, shape);
  });
}

kernels::LayerNormShape LayerNormShapeOf(const TensorType& x) {
  return {.rows = Rows(x), .channels = x.shape.back()};
}

NodeRun PrepareLayerNorm(const PlacedNode& n) {
  return Always([y = Output(n, 0), mean = Output(n, 1), rstd = Output(n, 2), x = Input(n, 0),
                 gain = Input(n, 1), bias = Input(n, 2),
                 epsilon = static_cast<float>(FloatAttribute(n, "epsilon", 1e-5)),
                 shape = LayerNormShapeOf(n.inputs[0])] {
    kernels::LayerNorm(y, mean, rstd, x, gain, bias, epsilon, shape);
  });
}

NodeRun PrepareLayerNormGradInput(const PlacedNode& n) {
  return Always([dx = Output(n), dy = Input(n, 0), x = Input(n, 1), gain = Input(n, 2),
                 mean = Input(n, 3), rstd = Input(n, 4), shape = LayerNormShapeOf(n.inputs[0])] {
    kernels::LayerNormGradInput(dx, dy, x, gain, mean, rstd, shape);
  });
}

NodeRun PrepareLayerNormGradParameters(const PlacedNode& n) {
  return Always([dgain = Output(n, 0), dbias = Output(n, 1), dy = Input(n, 0), x = Input(n, 1),
                 mean = Input(n, 2), rstd = Input(n, 3), shape = LayerNormShapeOf(n.inputs[0])] {
    kernels::LayerNormGradParameters(dgain, dbias, dy, x, mean, rstd, shape);
  });
}

kernels::AttentionShape AttentionShapeOf(const TypedNode& n, const TensorType& y) {
  return {.batch = y.shape[0],
          .context = y.shape[1],
          .channels = y.shape[2],
          .heads = IntAttribute(n, "heads", 1)};
}

NodeRun PrepareCausalAttention(const PlacedNode& n) {
  return Always([y = Output(n, 0), probabilities = Output(n, 1), qkv = Input(n, 0),
                 shape = AttentionShapeOf(n, n.outputs[0])] {
    kernels::CausalAttention(y, probabilities, qkv, shape);
  });
}

int64_t AttentionGradWorkspace(const TypedNode& n) {
  return AttentionShapeOf(n, n.inputs[0]).grad_workspace_floats() * sizeof(float);
}

NodeRun PrepareCausalAttentionGrad(const PlacedNode& n) {
  return Always([dqkv = Output(n), dy = Input(n, 0), qkv = Input(n, 1), probabilities = Input(n, 2),
                 workspace = Workspace(n), shape = AttentionShapeOf(n, n.inputs[0])] {
    kernels::CausalAttentionGrad(dqkv, dy, qkv, probabilities, workspace, shape);
  });
}

// --- Losses -------------------------------------------------------------------------------------

kernels::ClassesShape ClassesShapeOf(const TensorType& logits) {
  return {.rows = Rows(logits), .classes = logits.shape.back()};
}

NodeRun PrepareSoftmaxCrossEntropy(const PlacedNode& n) {
  return
      [loss = Output(n, 0), probabilities = Output(n, 1), logits = Input(n, 0), target = Ids(n, 1),
       shape = ClassesShapeOf(n.inputs[0]), name = n.node->name()](float) -> absl::Status {
        absl::Status in_range = CheckIds(name, target, shape.rows, shape.classes);
        if (in_range.ok()) {
          kernels::SoftmaxCrossEntropy(loss, probabilities, logits, target, shape);
        }
        return in_range;
      };
}

NodeRun PrepareSoftmaxCrossEntropyGrad(const PlacedNode& n) {
  return [dlogits = Output(n), probabilities = Input(n, 0), target = Ids(n, 1),
          shape = ClassesShapeOf(n.inputs[0])](float loss_scale) {
    kernels::SoftmaxCrossEntropyGrad(dlogits, probabilities, target, loss_scale, shape);
    return absl::OkStatus();
  };
}

NodeRun PrepareCorrectCount(const PlacedNode& n) {
  return [count = Output(n), logits = Input(n, 0), target = Ids(n, 1),
          shape = ClassesShapeOf(n.inputs[0]), name = n.node->name()](float) -> absl::Status {
    absl::Status in_range = CheckIds(name, target, shape.rows, shape.classes);
    if (in_range.ok()) kernels::CorrectCount(count, logits, target, shape);
    return in_range;
  };
}

NodeRun PrepareMeanSquaredError(const PlacedNode& n) {
  return Always([loss = Output(n), prediction = Input(n, 0), target = Input(n, 1),
                 size = n.inputs[0].elements()] {
    kernels::MeanSquaredError(loss, prediction, target, size);
  });
}

NodeRun PrepareMeanSquaredErrorGrad(const PlacedNode& n) {
  return [dprediction = Output(n), prediction = Input(n, 0), target = Input(n, 1),
          size = n.inputs[0].elements()](float loss_scale) {
    kernels::MeanSquaredErrorGrad(dprediction, prediction, target, loss_scale, size);
    return absl::OkStatus();
  };
}

bool IsAlways(const TypedNode&) { return true; }
bool HasOneInput(const TypedNode& n) { return n.inputs.size() == 1; }

}  // namespace

const CpuKernel* FindCpuKernel(absl::string_view op) {
  // In the order of lib/graph/ops.md.
  static const auto& kernels = *new absl::flat_hash_map<std::string, CpuKernel>{
      {"Linear", {.prepare = PrepareLinear}},
      {"Conv2d", {.prepare = PrepareConv2d, .workspace_bytes = ConvolutionWorkspace<ForwardShape>}},
      {"MaxPool2d", {.prepare = PrepareMaxPool2d}},
      {"Relu", {.prepare = PrepareActivation<kernels::Relu>, .overwritable = {0}}},
      {"Gelu", {.prepare = PrepareActivation<kernels::Gelu>, .overwritable = {0}}},
      {"Flatten", {.prepare = PrepareCopy, .is_alias = IsAlways}},
      {"Add", {.prepare = PrepareAdd, .overwritable = {0, 1}}},  // b: where it has all rows
      {"Embedding", {.prepare = PrepareEmbedding}},
      {"LayerNorm", {.prepare = PrepareLayerNorm, .overwritable = {0}}},
      {"CausalAttention", {.prepare = PrepareCausalAttention}},
      {"SoftmaxCrossEntropy", {.prepare = PrepareSoftmaxCrossEntropy}},
      {"MeanSquaredError", {.prepare = PrepareMeanSquaredError}},
      {"CorrectCount", {.prepare = PrepareCorrectCount}},
      {"LinearGradInput", {.prepare = PrepareLinearGradInput}},
      {"LinearGradWeight", {.prepare = PrepareLinearGradWeight}},
      {"LinearGradBias", {.prepare = PrepareLinearGradBias}},
      {"Conv2dGradInput",
       {.prepare = PrepareConv2dGradInput,
        .shape_only = {2},
        .workspace_bytes = ConvolutionWorkspace<GradInputShape>}},
      {"Conv2dGradWeight",
       {.prepare = PrepareConv2dGradWeight,
        .shape_only = {2},
        .workspace_bytes = ConvolutionWorkspace<GradWeightShape>}},
      {"Conv2dGradBias", {.prepare = PrepareConv2dGradBias}},
      {"MaxPool2dGrad", {.prepare = PrepareMaxPool2dGrad, .shape_only = {2}}},
      {"ReluGrad", {.prepare = PrepareActivationGrad<kernels::ReluGrad>, .overwritable = {0, 1}}},
      {"GeluGrad", {.prepare = PrepareActivationGrad<kernels::GeluGrad>, .overwritable = {0, 1}}},
      {"FlattenGrad", {.prepare = PrepareCopy, .shape_only = {1}, .is_alias = IsAlways}},
      {"AddGrad", {.prepare = PrepareAddGrad, .shape_only = {1}, .is_alias = IsSumOfOneRow}},
      {"EmbeddingGrad", {.prepare = PrepareEmbeddingGrad, .shape_only = {2}}},
      {"LayerNormGradInput", {.prepare = PrepareLayerNormGradInput, .overwritable = {0, 1}}},
      {"LayerNormGradParameters", {.prepare = PrepareLayerNormGradParameters}},
      {"CausalAttentionGrad",
       {.prepare = PrepareCausalAttentionGrad, .workspace_bytes = AttentionGradWorkspace}},
      {"SoftmaxCrossEntropyGrad", {.prepare = PrepareSoftmaxCrossEntropyGrad, .overwritable = {0}}},
      {"MeanSquaredErrorGrad", {.prepare = PrepareMeanSquaredErrorGrad, .overwritable = {0}}},
      {"Accumulate",
       {.prepare = PrepareAccumulate, .overwritable = {0, 1}, .is_alias = HasOneInput}},
  };
  const auto it = kernels.find(op);
  return it == kernels.end() ? nullptr : &it->second;
}

}  // namespace muster
