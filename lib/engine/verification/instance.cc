#include "lib/engine/verification/instance.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "kernels/conversion.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/device.h"
#include "lib/engine/element_type.h"
#include "lib/engine/executor.h"
#include "lib/engine/model_memory.h"
#include "lib/engine/reference/reference.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::verification {

std::string TestedDevice() {
  const char* device = std::getenv("MUSTER_DEVICE");
  return device == nullptr ? "cpu" : device;
}

Instance::Instance(v1::Graph graph, std::shared_ptr<Device> device,
                   std::shared_ptr<const ModelMemory> memory, std::vector<bool> narrow_parameters)
    : graph_(std::move(graph)),
      device_(std::move(device)),
      memory_(std::move(memory)),
      narrow_parameters_(std::move(narrow_parameters)) {}

absl::StatusOr<std::unique_ptr<Instance>> Instance::Create(v1::Graph graph,
                                                           const Options& options) {
  std::shared_ptr<Device> device;
  std::shared_ptr<const ModelMemory> memory;
  if (options.memory_of != nullptr) {
    device = options.memory_of->device_;
    memory = options.memory_of->memory_;
  } else {
    ASSIGN_OR_RETURN(device, CreateDevice(options.device, options.threads));
    ASSIGN_OR_RETURN(memory, ModelMemory::Create(graph, *device, /*seed=*/1));
  }
  std::unique_ptr<Instance> instance(new Instance(std::move(graph), std::move(device),
                                                  std::move(memory), options.narrow_parameters));
  ASSIGN_OR_RETURN(
      instance->executor_,
      CreateExecutor(instance->graph_, {.batch = options.batch,
                                        .device = instance->device_.get(),
                                        .parameters = instance->memory_->parameters(),
                                        .narrow_parameters = options.narrow_parameters,
                                        .gradients = instance->memory_->gradients(),
                                        .row_values = options.row_values,
                                        .micro_batches = options.micro_batches,
                                        .synchronised_devices = options.synchronised_devices}));
  return instance;
}

void Instance::SetParameters(const reference::Tensors& given) {
  for (int p = 0; p < graph_.parameters_size(); ++p) {
    const auto tensor = given.find(graph_.parameters(p).name());
    if (tensor == given.end()) continue;
    const std::vector<double>& values = tensor->second.values;
    CHECK_EQ(values.size(), memory_->parameter(p).size());
    for (size_t i = 0; i < values.size(); ++i) {
      memory_->parameter(p)[i] = static_cast<float>(values[i]);
    }
    if (narrow_parameters_.empty() || !narrow_parameters_[p]) continue;
    const std::vector<float> wide(memory_->parameter(p).begin(), memory_->parameter(p).end());
    kernels::Convert(memory_->parameter(p).data(), ElementTypeOf(graph_.parameters(p).dtype()),
                     wide.data(), kernels::ElementType::kF32, static_cast<int64_t>(wide.size()));
  }
}

void Instance::Set(const reference::Tensors& given) {
  SetParameters(given);
  for (const v1::GraphInput& input : graph_.inputs()) {
    const auto tensor = given.find(input.name());
    if (tensor != given.end()) SetInput(input.name(), tensor->second.values);
  }
}

void Instance::SetInput(absl::string_view name, absl::Span<const double> values) {
  for (const v1::GraphInput& input : graph_.inputs()) {
    if (input.name() != std::string(name)) continue;
    const absl::Span<std::byte> bytes = executor_->input(name);
    CHECK_EQ(bytes.size(), 4 * values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      if (input.dtype() == v1::DTYPE_I32) {
        const auto id = static_cast<int32_t>(values[i]);
        std::memcpy(&bytes[4 * i], &id, 4);
      } else {
        const auto value = static_cast<float>(values[i]);
        std::memcpy(&bytes[4 * i], &value, 4);
      }
    }
  }
}

absl::Status Instance::Run(const RunArguments& arguments, ParameterFlow* flow) {
  return executor_->Run(arguments, flow);
}

std::vector<double> Instance::Output(absl::string_view name) const {
  const absl::Span<const float> values = executor_->output(name).value();
  return {values.begin(), values.end()};
}

std::vector<double> Instance::Gradient(absl::string_view parameter) const {
  for (int p = 0; p < graph_.parameters_size(); ++p) {
    if (graph_.parameters(p).name() != std::string(parameter)) continue;
    const absl::Span<const float> values = memory_->gradient(p);
    return {values.begin(), values.end()};
  }
  LOG(FATAL) << "no parameter '" << std::string(parameter) << "'";
}

}  // namespace muster::verification
