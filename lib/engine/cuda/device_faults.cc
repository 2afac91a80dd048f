#include "lib/engine/cuda/device_faults.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {
namespace {

absl::Status Lost(absl::string_view message) {
  return WithReason(absl::InternalError(message), "DEVICE_LOST");
}

}  // namespace

absl::Status DeviceFaults::Lose(absl::string_view device, absl::string_view why) {
  absl::MutexLock lock(&mu_);
  const auto [fault, is_first] = lost_.try_emplace(std::string(device), why);
  return Lost(
      absl::StrCat(device, ": ", fault->second, "; restart the worker to use ", device, " again"));
}

absl::Status DeviceFaults::Check(absl::string_view device) const {
  absl::MutexLock lock(&mu_);
  const auto fault = lost_.find(std::string(device));
  if (fault == lost_.end()) return absl::OkStatus();
  return Lost(absl::StrCat(device, " was lost to this process by an earlier job (", fault->second,
                           "): restart the worker to use ", device, " again"));
}

std::string WhereItFailed(const RunProgress& progress) {
  const auto& [nodes, segment_ends, finished, node] = progress;
  if (node >= 0) return absl::StrCat("in node ", nodes[static_cast<size_t>(node)]);
  if (segment_ends.empty()) return "before the first node";
  if (finished >= std::ssize(segment_ends)) {
    return "after the last node, where gradients and results leave the GPU";
  }
  const auto segment = static_cast<size_t>(std::max<int64_t>(finished, 0));
  const int first = segment == 0 ? 0 : segment_ends[segment - 1];
  const int last = segment_ends[segment] - 1;
  if (first == last) return absl::StrCat("in node ", nodes[static_cast<size_t>(first)]);
  return absl::StrCat("in one of ", last - first + 1, " nodes, from ",
                      nodes[static_cast<size_t>(first)], " to ", nodes[static_cast<size_t>(last)],
                      "; to learn in which, run it with CUDA_LAUNCH_BLOCKING=1 in the worker's "
                      "environment");
}

}  // namespace muster
