// Sums the gradients of the devices of one process before they leave it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/collective/communicator.h"
#include "lib/collective/gradient_layout.h"
#include "lib/concurrency/mailbox.h"
#include "lib/limits/limits.h"

namespace muster {

// A bucket is reduced when a device has all of its gradients: the devices reduce-scatter it, each
// ends up with the sum of its slice, in device 0's memory, from where it leaves the process. So a
// node sends as many bytes as its model has, however many devices it has, and every device does
// the same share of the sum. CPU devices do it on a communication thread each, while their
// computing threads go on; GPUs in a stream of their own, and only say so (SliceReduced).
//
// Device threads call Contribute() and SliceReduced(); Abort() may come from any thread.
class GradientReduction {
 public:
  // Floats of the layout inside one parameter that are announced together: a chunk.
  struct Piece {
    int64_t begin = 0;
    int64_t end = 0;
  };

  struct Options {
    GradientLayout layout;
    // By device: layout.elements floats, outlive this.
    std::vector<float*> memory;
    // By device, of one group. None with a single device, or where devices reduce themselves.
    std::vector<std::unique_ptr<Communicator>> communicators;
    std::vector<Piece> pieces;
    // By parameter: its values never change, so that no device waits for its sum. A bucket of such
    // parameters alone is not reduced. Empty: none is.
    std::vector<bool> frozen;
    // The sum of a piece over all devices is final in device 0's memory. On any thread, for several
    // pieces at once. Its first error ends the reduction.
    absl::AnyInvocable<absl::Status(int piece, int64_t step)> reduced;
    absl::Duration announce_timeout = limits::kReductionWaitMax;
  };
  explicit GradientReduction(Options options);
  ~GradientReduction();  // aborts what is under way

  // `device`'s gradient of `parameter` of `step` is final. Sums are taken in device order, so that
  // they do not depend on who comes last. A device contributes to a next step only after all pieces
  // of parameters that are not frozen were announced. The status of Abort() or of `reduced`, once
  // there is one.
  absl::Status Contribute(int device, int parameter, int64_t step) ABSL_LOCKS_EXCLUDED(mu_);

  // `device` has reduced its slice of `bucket` itself; it lies in device 0's memory.
  absl::Status SliceReduced(int device, int bucket, int64_t step) ABSL_LOCKS_EXCLUDED(mu_);

  // Blocks until the full buckets of `step`, which all devices have contributed, are announced, or
  // the reduction has ended. Some devices may have begun the next step. DEADLINE_EXCEEDED, reason
  // "COLLECTIVE_TIMEOUT", after `announce_timeout`; it names the devices and the buckets that they
  // are at.
  absl::Status AwaitAnnounced(int64_t step) ABSL_LOCKS_EXCLUDED(mu_);

  const GradientLayout& layout() const { return options_.layout; }
  int devices() const { return static_cast<int>(options_.memory.size()); }

  // A device failed: every later call returns `why`, so that the others stop early.
  void Abort(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct FullBucket {
    int bucket = 0;
    int64_t step = 0;
  };
  struct Lane {  // of a device
    explicit Lane(size_t buckets) : full(buckets + 1) {}
    std::vector<int> missing;        // by bucket: gradients of this step, the device's thread alone
    std::atomic<int> reducing = -1;  // a bucket; -1: none
    Mailbox<FullBucket> full;        // to be reduced
    std::jthread thread;             // last
  };

  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);
  void ReduceBuckets(int device);
  std::string NamesOfReducing() const;
  absl::Status Reduce(int device, const FullBucket& full);
  absl::Status Announce(int64_t begin, int64_t end, int64_t step);

  Options options_;
  std::vector<std::vector<int>> pieces_of_parameter_;
  std::vector<int> order_;                            // pieces by where they begin
  std::vector<std::atomic<int64_t>> missing_floats_;  // by piece: not reduced yet
  std::vector<bool> is_reduced_;                      // by bucket
  // Full buckets over all devices, of even and of odd steps: no more than two are under way.
  std::array<std::atomic<int>, 2> under_way_ = {};
  std::atomic<bool> is_aborted_ = false;
  mutable absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Lane>> lanes_;  // last: their threads use all of the above
};

}  // namespace muster
