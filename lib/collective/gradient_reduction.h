// Sums the gradients of the devices of one process before they leave it.
#pragma once

#include <atomic>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace muster {

// One reduction per parameter and step. Nobody waits: the device that comes last with a parameter
// sums it (in shared memory; between GPUs a communicator takes this place, and `reduced` is called
// when its stream gets there). Device threads call Contribute(); Abort() may come from any thread.
class GradientReduction {
 public:
  struct Options {
    // gradients[device][parameter]: f32[elements], the same sizes on every device. Outlive this.
    std::vector<std::vector<absl::Span<float>>> gradients;
    // The sum over all devices is final in device 0's memory. On the thread of some device.
    absl::AnyInvocable<absl::Status(int parameter)> reduced;
  };
  explicit GradientReduction(Options options);

  // `device`'s gradient of `parameter` is final. The sum is taken in device order, so that it does
  // not depend on who comes last. A device contributes again to a parameter only after all have
  // contributed before (the devices meet between steps). Returns what `reduced` returns, or the
  // status of Abort().
  absl::Status Contribute(int device, int parameter);

  // A device failed: every later Contribute() returns `why`, so that the others stop early.
  void Abort(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Sum(int parameter);

  Options options_;
  std::vector<std::atomic<int>> contributed_;  // by parameter: devices so far
  std::atomic<bool> is_aborted_ = false;
  absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
