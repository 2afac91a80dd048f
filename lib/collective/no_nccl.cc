#include "absl/status/status.h"
#include "glog/logging.h"
#include "lib/collective/nccl_communicator.h"

namespace muster {

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Create(int, absl::Duration) {
  return absl::UnavailableError("this program was built without CUDA");
}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Open(std::string, int, absl::Duration) {
  return absl::UnavailableError("this program was built without CUDA");
}

int NcclGroup::LibraryVersion() { LOG(FATAL) << "a group of GPUs without CUDA"; }

absl::StatusOr<std::unique_ptr<Communicator>> NcclGroup::Join(int) {
  LOG(FATAL) << "a group of GPUs without CUDA";
}

void NcclGroup::Abort(absl::Status) { LOG(FATAL) << "a group of GPUs without CUDA"; }

}  // namespace muster
