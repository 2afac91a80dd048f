#include "kernels/cuda/cudnn_failure.h"

#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace muster::kernels::cuda {

Failure FailureOf(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS) return nullptr;
  char said[2048] = "";
  cudnnGetLastErrorString(said, sizeof(said));
  // Some calls also report their position, one per line.
  const char* const marked = std::strstr(said, "Reason: ");
  const char* const reason = marked != nullptr ? marked : said;
  std::string text = cudnnGetErrorString(status);
  if (*reason != '\0') text.append(": ").append(reason, std::strcspn(reason, "\n"));
  static std::mutex mutex;
  static auto* const texts = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return texts->insert(std::move(text)).first->c_str();
}

}  // namespace muster::kernels::cuda
