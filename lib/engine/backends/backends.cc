#include "lib/engine/backends/backends.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "lib/engine/cpu/cpu_device.h"
#include "lib/engine/cpu/cpu_executor.h"
#include "lib/engine/cuda/cuda_backend.h"

namespace muster {
namespace {

// Returns the number of "kind:number", or nullopt if `name` has another form.
std::optional<int> NumberOf(absl::string_view name, absl::string_view kind) {
  int number;
  if (!absl::ConsumePrefix(&name, kind) || !absl::ConsumePrefix(&name, ":") ||
      !absl::SimpleAtoi(name, &number) || number < 0) {
    return std::nullopt;
  }
  return number;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateDevice(absl::string_view name, int threads) {
  CHECK_GE(threads, 1);
  if (const std::optional<int> gpu = NumberOf(name, "cuda")) return CreateCudaDevice(*gpu);
  if (name == "cpu" || NumberOf(name, "cpu")) {
    return std::make_unique<CpuDevice>(std::string(name), threads);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("device '", name, "' is unknown: expected \"cpu\", \"cpu:0\" or \"cuda:0\""));
}

absl::StatusOr<std::unique_ptr<Executor>> CreateExecutor(const v1::Graph& graph,
                                                         const Executor::Options& options) {
  CHECK(options.device != nullptr);
  CHECK_EQ(options.parameters.size(), graph.parameters_size());
  CHECK_EQ(options.gradients.size(), graph.gradients_size());
  return options.device->is_cpu() ? CreateCpuExecutor(graph, options)
                                  : CreateCudaExecutor(graph, options);
}

absl::StatusOr<Executor::MemoryNeed> MemoryNeedOf(const v1::Graph& graph,
                                                  const Executor::Options& options) {
  CHECK(options.device != nullptr);
  return options.device->is_cpu() ? PlanCpuMemory(graph, options) : PlanCudaMemory(graph, options);
}

}  // namespace muster
