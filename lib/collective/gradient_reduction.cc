#include "lib/collective/gradient_reduction.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "glog/logging.h"

namespace muster {
namespace {

// Small enough that the running sum stays in the first-level cache over all devices.
constexpr size_t kBlockElements = 2048;

void Add(float* __restrict sum, const float* __restrict term, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] += term[i];
}

}  // namespace

GradientReduction::GradientReduction(Options options)
    : options_(std::move(options)), contributed_(options_.gradients.at(0).size()) {
  for (const auto& device : options_.gradients) CHECK_EQ(device.size(), contributed_.size());
}

absl::Status GradientReduction::Contribute(int device, int parameter) {
  DCHECK_LT(device, static_cast<int>(options_.gradients.size()));
  if (is_aborted_.load(std::memory_order_acquire)) {
    absl::MutexLock lock(&mu_);
    return aborted_;
  }
  std::atomic<int>& contributed = contributed_[parameter];
  const int devices = static_cast<int>(options_.gradients.size());
  if (contributed.fetch_add(1, std::memory_order_acq_rel) + 1 < devices) return absl::OkStatus();
  contributed.store(0, std::memory_order_relaxed);
  Sum(parameter);
  return options_.reduced(parameter);
}

void GradientReduction::Sum(int parameter) {
  absl::Span<float> sum = options_.gradients[0][parameter];
  for (size_t begin = 0; begin < sum.size(); begin += kBlockElements) {
    const size_t count = std::min(kBlockElements, sum.size() - begin);
    for (size_t device = 1; device < options_.gradients.size(); ++device) {
      Add(sum.data() + begin, options_.gradients[device][parameter].data() + begin, count);
    }
  }
}

void GradientReduction::Abort(const absl::Status& why) {
  CHECK(!why.ok());
  absl::MutexLock lock(&mu_);
  if (aborted_.ok()) aborted_ = why;
  is_aborted_.store(true, std::memory_order_release);
}

}  // namespace muster
