#include "cli/commands/text_sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/concurrency/cpu_quota.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/zoo/zoo.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::cli {
namespace {

// Draws a token from softmax(logits / temperature).
int Draw(absl::Span<const float> logits, double temperature, std::mt19937_64& random) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights;
  for (float logit : logits) weights.push_back(std::exp((logit - largest) / temperature));
  // std::discrete_distribution differs between standard libraries. With it, the same seed would
  // give other text on another platform.
  double total = 0;
  for (double weight : weights) total += weight;
  // 53 random bits make a double in [0, 1).
  double rest = total * (static_cast<double>(random() >> 11) / 9007199254740992.0);
  for (size_t i = 0; i < weights.size(); ++i) {
    rest -= weights[i];
    if (rest < 0) return static_cast<int>(i);
  }
  return static_cast<int>(weights.size()) - 1;
}

// Returns the number of tokens that the model reads, or 0 if it does not read tokens.
int64_t ContextOf(const v1::Graph& graph) {
  for (const v1::GraphInput& input : graph.inputs()) {
    if (input.name() == "input" && input.dtype() == v1::DTYPE_I32 && input.shape_size() == 2) {
      return input.shape(1);
    }
  }
  return 0;
}

char Printable(int token) {
  const char c = static_cast<char>(token);
  return token < 256 && (absl::ascii_isprint(c) || c == '\n') ? c : '?';
}

}  // namespace

bool HasText(const CheckpointReader& checkpoint) {
  return checkpoint.manifest().spec.data().has_text();
}

absl::StatusOr<std::string> SampleText(const CheckpointReader& checkpoint,
                                       const TextSampling& sampling) {
  ASSIGN_OR_RETURN(const v1::Graph model, BuildModel(checkpoint.manifest().spec.model()));
  ASSIGN_OR_RETURN(const v1::Graph graph, InferenceGraph(model, {}));
  const int64_t context = ContextOf(graph);
  if (sampling.prompt.empty()) {
    return absl::InvalidArgumentError("the prompt is empty; give at least one character");
  }
  if (context == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model '", graph.name(),
                     "' reads no tokens; text needs an input 'input' of type i32[batch, tokens]"));
  }
  if (graph.logits().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model '", graph.name(), "' has no logits, so there is no next character to draw"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, CreateDevice("cpu", UsableCpus()));
  std::vector<Device::Memory> memory;
  std::vector<float*> parameters;
  for (const v1::Parameter& parameter : graph.parameters()) {
    const int64_t elements = ElementCount(parameter);
    ASSIGN_OR_RETURN(Device::Memory own,
                     device->Allocate(elements * sizeof(float),
                                      absl::StrCat("the values of '", parameter.name(), "'")));
    parameters.push_back(reinterpret_cast<float*>(memory.emplace_back(std::move(own)).get()));
    RETURN_IF_ERROR(
        checkpoint.Read(parameter.name(), "", 0, absl::MakeSpan(parameters.back(), elements)));
  }
  ASSIGN_OR_RETURN(
      std::unique_ptr<Executor> executor,
      CreateExecutor(graph, {.batch = 1, .device = device.get(), .parameters = parameters}));
  const absl::Span<std::byte> input = executor->input("input");
  const absl::Span<std::byte> target = executor->input("target");
  std::fill(target.begin(), target.end(), std::byte{0});

  std::vector<int32_t> tokens;
  for (unsigned char c : sampling.prompt) tokens.push_back(c);
  std::mt19937_64 random(sampling.seed);
  std::string text;
  for (int i = 0; i < sampling.characters; ++i) {
    if (static_cast<int64_t>(tokens.size()) > context) {
      tokens.erase(tokens.begin(), tokens.end() - context);
    }
    // Attention is causal, so the padding after the last token has no effect on it.
    std::fill(input.begin(), input.end(), std::byte{0});
    std::memcpy(input.data(), tokens.data(), tokens.size() * sizeof(int32_t));
    RETURN_IF_ERROR(executor->Run({}, /*flow=*/nullptr));
    ASSIGN_OR_RETURN(const absl::Span<const float> logits, executor->output(graph.logits()));
    const int64_t vocabulary = static_cast<int64_t>(logits.size()) / context;
    const int token = Draw(logits.subspan((tokens.size() - 1) * vocabulary, vocabulary),
                           sampling.temperature, random);
    tokens.push_back(token);
    text.push_back(Printable(token));
  }
  return text;
}

}  // namespace muster::cli
