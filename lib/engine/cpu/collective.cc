// Ops of the ranks of a split graph.
#include <cstring>

#include "absl/status/status.h"
#include "glog/logging.h"
#include "lib/collective/typed_buffer.h"
#include "lib/engine/cpu/binding.h"

namespace muster {
namespace {

CollectiveType CollectiveTypeOf(v1::DType dtype) {
  if (dtype == v1::DTYPE_BF16) return CollectiveType::kBf16;
  return dtype == v1::DTYPE_F16 ? CollectiveType::kF16 : CollectiveType::kF32;
}

PlannedNode PlanAllReduce(const CpuNode& n) {
  PlannedNode plan{.overwritable = {0}, .is_collective = true};
  plan.prepare = Call([type = CollectiveTypeOf(n.inputs[0].dtype), elements = n.elements(0)](
                          const NodeMemory& m, const RunNumbers& numbers) {
    CHECK(numbers.tensor_parallel != nullptr) << "a split graph runs without its other ranks";
    const TypedBuffer y(m.outputs[0], elements, type);
    if (m.inputs[0] != m.outputs[0]) std::memcpy(m.outputs[0], m.inputs[0], y.bytes());
    return numbers.tensor_parallel->AllReduce(y, /*stream=*/nullptr);
  });
  return plan;
}

PlannedNode PlanGradientAllReduce(const CpuNode& n) { return PlanAlias(n); }

}  // namespace

void AddCollectiveKernels(CpuKernelTable& table) {
  table["AllReduce"] = {.plan = PlanAllReduce, .any_type = true};
  table["GradientAllReduce"] = {.plan = PlanGradientAllReduce, .any_type = true};
}

}  // namespace muster
