// Ops of the ranks of a split graph.
#include <cuda_runtime_api.h>

#include "lib/collective/typed_buffer.h"
#include "lib/engine/cuda/binding.h"
#include "lib/status/status.h"

namespace muster {
namespace {

CollectiveType CollectiveTypeOf(v1::DType dtype) {
  if (dtype == v1::DTYPE_BF16) return CollectiveType::kBf16;
  return dtype == v1::DTYPE_F16 ? CollectiveType::kF16 : CollectiveType::kF32;
}

absl::StatusOr<PlannedNode> PlanAllReduce(const CudaNode& node) {
  PlannedNode plan{.overwritable = {0}, .is_collective = true, .is_asynchronous = true};
  plan.prepare = [type = CollectiveTypeOf(node.inputs[0].dtype),
                  elements = node.elements(0)](const NodeMemory& m) -> NodeRun {
    return [=](const RunNumbers& run) -> absl::Status {
      const auto stream = static_cast<cudaStream_t>(run.asynchronous);
      const TypedBuffer y(m.outputs[0], elements, type);
      if (m.inputs[0] != m.outputs[0]) {
        RETURN_IF_ERROR(
            StatusOf(cudaMemcpyAsync(y.data, m.inputs[0], static_cast<size_t>(y.bytes()),
                                     cudaMemcpyDeviceToDevice, stream)));
      }
      if (run.tensor_parallel == nullptr) return absl::OkStatus();  // a warm-up
      return run.tensor_parallel->AllReduce(y, stream);
    };
  };
  return plan;
}

absl::StatusOr<PlannedNode> PlanGradientAllReduce(const CudaNode& node) { return PlanAlias(node); }

}  // namespace

void AddCollectiveKernels(CudaKernelTable& table) {
  table["AllReduce"] = PlanAllReduce;
  table["GradientAllReduce"] = PlanGradientAllReduce;
}

}  // namespace muster
