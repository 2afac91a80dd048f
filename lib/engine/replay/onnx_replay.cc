#include "lib/engine/replay/onnx_replay.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/optimizer/optimizer.h"
#include "lib/checkpoint/safetensors.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "lib/engine/model_memory.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/onnx/onnx_import.h"
#include "lib/status/status.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

constexpr int kBatches = 2;

class Recording {
 public:
  static absl::StatusOr<Recording> Open(const std::string& path) {
    ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(path));
    return Recording(path, std::move(header));
  }

  bool Has(const std::string& tensor) const { return header_.Find(tensor) != nullptr; }

  template <typename T>
  absl::StatusOr<std::vector<T>> Read(const std::string& tensor) const {
    ASSIGN_OR_RETURN(const TensorEntry* entry, Find(tensor));
    std::vector<T> values(entry->bytes / sizeof(T));
    RETURN_IF_ERROR(ReadFileRange(path_, entry->offset, values.size() * sizeof(T), values.data()));
    return values;
  }

  absl::StatusOr<double> Number(const std::string& tensor) const {
    ASSIGN_OR_RETURN(const std::vector<double> values, Read<double>(tensor));
    if (values.size() != 1) return Fault(tensor, "is not one number");
    return values[0];
  }

  // Returns the samples of one batch of `input`, after a check of its type.
  absl::StatusOr<int64_t> BatchOf(const v1::GraphInput& input) const {
    ASSIGN_OR_RETURN(const TensorEntry* entry, Find(input.name()));
    if (entry->dtype != (input.dtype() == v1::DTYPE_F32 ? "F32" : "I32")) {
      return Fault(input.name(),
                   absl::StrCat("is ", entry->dtype, ", a type that the graph does not read"));
    }
    if (entry->shape.empty() || entry->shape[0] < kBatches || entry->shape[0] % kBatches != 0) {
      return Fault(input.name(), "does not hold two batches");
    }
    return entry->shape[0] / kBatches;
  }

  absl::Status Fault(const std::string& tensor, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": '", tensor, "' ", what));
  }

 private:
  Recording(std::string path, SafetensorsHeader header)
      : path_(std::move(path)), header_(std::move(header)) {}

  absl::StatusOr<const TensorEntry*> Find(const std::string& tensor) const {
    const TensorEntry* entry = header_.Find(tensor);
    if (entry == nullptr) return Fault(tensor, "is missing");
    return entry;
  }

  std::string path_;
  SafetensorsHeader header_;
};

// The values of a graph's inputs, from a recording.
class RecordedInputs {
 public:
  static absl::StatusOr<RecordedInputs> Create(const v1::Graph& graph, const Recording& recording) {
    RecordedInputs inputs;
    for (const v1::GraphInput& input : graph.inputs()) {
      ASSIGN_OR_RETURN(const int64_t batch, recording.BatchOf(input));
      if (inputs.batch_ != 0 && inputs.batch_ != batch) {
        return recording.Fault(
            input.name(), absl::StrCat("has batches of ", batch, ", others of ", inputs.batch_));
      }
      inputs.batch_ = batch;
      ASSIGN_OR_RETURN(inputs.samples_[input.name()], recording.Read<std::byte>(input.name()));
    }
    return inputs;
  }

  int64_t batch() const { return batch_; }

  absl::Status Fill(int batch, Executor& executor) const {
    for (const auto& [name, samples] : samples_) {
      const absl::Span<std::byte> to = executor.input(name);
      if (samples.size() != to.size() * kBatches) {
        return absl::InvalidArgumentError(absl::StrCat("input '", name, "': a batch has ",
                                                       samples.size() / kBatches,
                                                       " bytes, the graph reads ", to.size()));
      }
      std::memcpy(to.data(), samples.data() + batch * to.size(), to.size());
    }
    return absl::OkStatus();
  }

 private:
  absl::flat_hash_map<std::string, std::vector<std::byte>> samples_;
  int64_t batch_ = 0;
};

double RelativeDifference(double value, double expected) {
  const double difference = std::abs(value - expected) / std::abs(expected);
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

absl::StatusOr<double> LogitsDifference(absl::Span<const float> own, const Recording& recording) {
  ASSIGN_OR_RETURN(const std::vector<float> logits, recording.Read<float>("logits"));
  if (own.size() != logits.size()) {
    return recording.Fault("logits", absl::StrCat("are ", logits.size(), ", not ", own.size()));
  }
  double difference = 0, largest = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(logits[i])));
    const double off = std::abs(static_cast<double>(own[i]) - logits[i]);
    difference = std::max(difference, std::isnan(off) ? HUGE_VAL : off);
  }
  return difference / largest;
}

// Applies gradients as the ps does, in this process. lib/graph/ops.md explains statistics.
class Sgd {
 public:
  Sgd(const v1::Graph& graph, const ModelMemory& memory, double momentum, double learning_rate)
      : graph_(graph),
        memory_(memory),
        settings_{.rule = kernels::OptimizerRule::kSgdMomentum, .momentum = momentum},
        learning_rate_(learning_rate) {
    for (int p = 0; p < graph.parameters_size(); ++p) momenta_.emplace_back(Values(p).size());
  }

  void Step(int64_t step) {
    for (int p = 0; p < graph_.parameters_size(); ++p) {
      if (graph_.parameters(p).has_statistic_momentum()) {
        MoveStatistic(p, graph_.parameters(p).statistic_momentum());
      } else {
        MoveTrained(p, step);
      }
    }
  }

 private:
  absl::Span<float> Values(int p) const { return memory_.parameter(p); }

  void MoveStatistic(int p, double momentum) {
    const absl::Span<const float> contribution = memory_.gradient(p);
    for (size_t i = 0; i < contribution.size(); ++i) {
      float& value = Values(p)[i];
      value += static_cast<float>(momentum) * (contribution[i] - value);
    }
  }

  void MoveTrained(int p, int64_t step) {
    const kernels::Gradient gradients[] = {{memory_.gradient(p).data()}};
    std::vector<float> values(Values(p).size()), momentum(values.size());
    kernels::OptimizerBuffers buffers{.gradients = gradients,
                                      .ranks = 1,
                                      .values_in = Values(p).data(),
                                      .values_out = values.data()};
    buffers.slots_in[0] = momenta_[p].data();
    buffers.slots_out[0] = momentum.data();
    kernels::ApplyOptimizer(settings_, learning_rate_, step, buffers, values.size());
    std::ranges::copy(values, Values(p).begin());
    momenta_[p] = std::move(momentum);
  }

  const v1::Graph& graph_;
  const ModelMemory& memory_;
  const kernels::OptimizerSettings settings_;
  const double learning_rate_;
  std::vector<std::vector<float>> momenta_;
};

absl::StatusOr<std::vector<float>> Infer(const v1::Graph& forward, const Recording& recording,
                                         const ModelMemory& memory, Device& device) {
  ASSIGN_OR_RETURN(const v1::Graph graph, InferenceGraph(forward, {}));
  ASSIGN_OR_RETURN(const RecordedInputs inputs, RecordedInputs::Create(graph, recording));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Executor> executor,
      CreateExecutor(
          graph, {.batch = inputs.batch(), .device = &device, .parameters = memory.parameters()}));
  RETURN_IF_ERROR(inputs.Fill(/*batch=*/0, *executor));
  RETURN_IF_ERROR(executor->Run({}, nullptr));
  ASSIGN_OR_RETURN(const absl::Span<const float> output,
                   executor->output(graph.logits().empty() ? graph.loss() : graph.logits()));
  return std::vector<float>(output.begin(), output.end());
}

}  // namespace

absl::StatusOr<OnnxReplay> ReplayOnnx(const v1::OnnxModel& model, const std::string& path) {
  ASSIGN_OR_RETURN(const ImportedModel imported, ImportOnnx(model));
  ASSIGN_OR_RETURN(const v1::Graph graph, TrainingGraph(imported.graph, {}));
  ASSIGN_OR_RETURN(const Recording recording, Recording::Open(path));
  ASSIGN_OR_RETURN(const RecordedInputs inputs, RecordedInputs::Create(graph, recording));
  ASSIGN_OR_RETURN(const std::vector<double> losses, recording.Read<double>("losses"));
  std::vector<double> noise;
  if (recording.Has("noise")) {
    ASSIGN_OR_RETURN(noise, recording.Read<double>("noise"));
    if (noise.size() != losses.size())
      return recording.Fault("noise", "does not have one value per step");
  }
  ASSIGN_OR_RETURN(const double momentum, recording.Number("momentum"));
  ASSIGN_OR_RETURN(const double learning_rate, recording.Number("learning_rate"));

  ASSIGN_OR_RETURN(const auto device, CreateDevice("cpu", 1));
  ASSIGN_OR_RETURN(const auto memory, ModelMemory::Create(graph, *device, /*seed=*/1));
  for (int p = 0; p < graph.parameters_size(); ++p) {
    std::ranges::copy(imported.initial_values[p], memory->parameter(p).begin());
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Executor> executor,
                   CreateExecutor(graph, {.batch = inputs.batch(),
                                          .device = device.get(),
                                          .parameters = memory->parameters(),
                                          .gradients = memory->gradients()}));
  Sgd sgd(graph, *memory, momentum, learning_rate);
  OnnxReplay replay{.warnings = imported.warnings};
  for (size_t step = 0; step < losses.size(); ++step) {
    RETURN_IF_ERROR(inputs.Fill(static_cast<int>(step % kBatches), *executor));
    RETURN_IF_ERROR(executor->Run({}, nullptr));
    ASSIGN_OR_RETURN(const absl::Span<const float> loss, executor->output(graph.loss()));
    const double difference = RelativeDifference(loss[0], losses[step]);
    replay.loss_difference = std::max(replay.loss_difference, difference);
    if (!noise.empty()) {
      const double noises = difference / std::max(noise[step], OnnxReplay::kLeastNoise);
      replay.loss_noises = std::max(replay.loss_noises.value_or(0), noises);
    }
    if (step == 0 && !graph.logits().empty()) {
      ASSIGN_OR_RETURN(const absl::Span<const float> logits, executor->output(graph.logits()));
      ASSIGN_OR_RETURN(replay.logits_difference, LogitsDifference(logits, recording));
    }
    sgd.Step(static_cast<int64_t>(step));
  }
  ASSIGN_OR_RETURN(replay.inference, Infer(imported.graph, recording, *memory, *device));
  for (int p = 0; p < graph.parameters_size(); ++p) {
    const absl::Span<const float> values = memory->parameter(p);
    replay.parameters[graph.parameters(p).name()] = {values.begin(), values.end()};
  }
  return replay;
}

std::string JudgementLine(const absl::StatusOr<OnnxReplay>& replay) {
  if (!replay.ok()) {
    return nlohmann::json{{"accepted", false}, {"message", std::string(replay.status().message())}}
        .dump();
  }
  const auto number = [](absl::optional<double> value) {
    return value && std::isfinite(*value) ? nlohmann::json(*value) : nlohmann::json();
  };
  nlohmann::json line = {{"accepted", true},
                         {"warnings", replay->warnings},
                         {"loss_difference", number(replay->loss_difference)},
                         {"loss_noises", number(replay->loss_noises)},
                         {"logits_difference", number(replay->logits_difference)}};
  if (replay->loss_noises) line["passed"] = *replay->loss_noises <= OnnxReplay::kNoisesMax;
  return line.dump();
}

}  // namespace muster
