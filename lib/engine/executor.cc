#include "lib/engine/executor.h"

#include "glog/logging.h"
#include "lib/engine/cpu/cpu_executor.h"
#include "lib/engine/cuda/cuda_backend.h"

namespace muster {

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const v1::Graph& graph,
                                                           const Options& options) {
  CHECK(options.device != nullptr);
  CHECK_EQ(options.parameters.size(), graph.parameters_size());
  CHECK_EQ(options.gradients.size(), graph.gradients_size());
  return options.device->is_cpu() ? CreateCpuExecutor(graph, options)
                                  : CreateCudaExecutor(graph, options);
}

absl::StatusOr<Executor::MemoryNeed> Executor::PlanMemory(const v1::Graph& graph,
                                                          const Options& options) {
  CHECK(options.device != nullptr);
  return options.device->is_cpu() ? PlanCpuMemory(graph, options) : PlanCudaMemory(graph, options);
}

}  // namespace muster
