#include "absl/status/status.h"
#include "glog/logging.h"
#include "lib/engine/cuda/cuda_backend.h"

namespace muster {
namespace {

absl::Status NotBuiltIn() { return absl::UnavailableError("this program was built without CUDA"); }

}  // namespace

absl::StatusOr<int> CountCudaDevices() { return NotBuiltIn(); }

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int) { return NotBuiltIn(); }

absl::StatusOr<std::unique_ptr<Executor>> CreateCudaExecutor(const v1::Graph&,
                                                             const Executor::Options&) {
  LOG(FATAL) << "a CUDA device cannot exist in a program built without CUDA";
}

absl::StatusOr<Executor::MemoryNeed> PlanCudaMemory(const v1::Graph&, const Executor::Options&) {
  LOG(FATAL) << "a CUDA device cannot exist in a program built without CUDA";
}

}  // namespace muster
