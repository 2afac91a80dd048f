// Sums the gradients of a process's devices before they are sent.
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

// Reduces a bucket when a device has all of its gradients. The devices reduce-scatter it: each sums
// its slice into device 0's memory, from which the sums are sent. So a node sends as many bytes as
// its model has, for any number of devices, and every device does an equal share of the sum. CPU
// devices use one communication thread each while their computing threads continue. GPUs reduce on
// a stream of their own and report the result (SliceReduced).
//
// Device threads call Contribute() and SliceReduced(). Abort() may be called on any thread.
class GradientReduction {
 public:
  // Floats of the layout that belong to one parameter and are announced together: a chunk.
  struct Piece {
    int64_t begin = 0;
    int64_t end = 0;
  };

  struct Options {
    GradientLayout layout;
    // Holds layout.elements floats for each device. Must outlive the reduction.
    std::vector<float*> memory;
    // By device, all of one group. Empty with a single device, or if the devices reduce by
    // themselves.
    std::vector<std::unique_ptr<Communicator>> communicators;
    std::vector<Piece> pieces;
    // Holds true for a parameter whose values never change: no device waits for its sum. A bucket
    // that has only such parameters is not reduced. Empty: no parameter is frozen.
    std::vector<bool> frozen;
    // Called when the sum of a piece over all devices is final in device 0's memory. Several
    // threads may call it at the same time, for different pieces. Its first error ends the
    // reduction.
    absl::AnyInvocable<absl::Status(int piece, int64_t step)> reduced;
    absl::Duration announce_timeout = limits::kReductionWaitMax;
    // A device may contribute each gradient several times in a step (logical workers). Then the
    // steps below are rounds: step * rounds_per_step + 0, 1, ...
    int64_t rounds_per_step = 1;
    // The number of ranks that compute the gradients of a device together (tensor parallelism).
    // They share its memory. A gradient is final when all of them have contributed it. They
    // contribute in the same order, each on its own thread, and meet between two contributions of
    // one parameter.
    int ranks = 1;
  };
  explicit GradientReduction(Options options);
  ~GradientReduction();  // aborts reductions in progress

  // Reports that `device`'s gradient of `parameter` of `step` is final. Sums are added in device
  // order, so they do not depend on the order of arrival. Requires: all pieces of the previous step
  // were announced, except those of frozen parameters. Returns the status of Abort() or of
  // `reduced` after either has failed.
  absl::Status Contribute(int device, int parameter, int64_t step) ABSL_LOCKS_EXCLUDED(mu_);

  // Reports that `device` has reduced its slice of `bucket` itself, into device 0's memory.
  absl::Status SliceReduced(int device, int bucket, int64_t step) ABSL_LOCKS_EXCLUDED(mu_);

  // Blocks until every bucket of `step` that some device has filled is announced, or the reduction
  // has ended. Also waits for the other ranks to contribute gradients that one has contributed.
  // Returns at once if the devices reduce by themselves. Some devices may already be at the next
  // step. Returns DEADLINE_EXCEEDED (reason "COLLECTIVE_TIMEOUT") after
  // `announce_timeout`; the message names the devices and their present buckets.
  absl::Status AwaitAnnounced(int64_t step) ABSL_LOCKS_EXCLUDED(mu_);

  const GradientLayout& layout() const { return options_.layout; }
  int devices() const { return static_cast<int>(options_.memory.size()); }

  // Reports that a device failed. Every later call returns `why`, so that the other devices stop
  // early.
  void Abort(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct FullBucket {
    int bucket = 0;
    int64_t step = 0;
  };
  struct Lane {  // the state of one device
    explicit Lane(size_t buckets) : full(buckets + 1) {}
    absl::Mutex mu;  // the ranks of a device post its buckets in order
    std::vector<int> missing
        ABSL_GUARDED_BY(mu);         // by bucket: gradients still missing in this step
    std::atomic<int> reducing = -1;  // the bucket being reduced; -1: none
    Mailbox<FullBucket> full;        // buckets to reduce
    std::jthread thread;             // last
  };

  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);
  bool IsComplete(int device, int parameter, int64_t step) ABSL_LOCKS_EXCLUDED(ranks_mu_);
  absl::Status CountDown(int device, int parameter, int64_t step);
  void EndOf(int64_t step) ABSL_LOCKS_EXCLUDED(mu_);
  void ReduceBuckets(int device);
  std::string NameOf(int64_t round) const;
  std::string NamesOfReducing() const;
  absl::Status Reduce(int device, const FullBucket& full);
  absl::Status Announce(int64_t begin, int64_t end, int64_t step);

  Options options_;
  std::vector<std::vector<int>> pieces_of_parameter_;
  std::vector<int> order_;                            // pieces, sorted by begin
  std::vector<std::atomic<int64_t>> missing_floats_;  // by piece: floats not yet reduced
  std::vector<bool> is_reduced_;                      // by bucket
  absl::Mutex ranks_mu_;
  // The number of ranks that have contributed in this step, by device and parameter. Empty if there
  // is one rank.
  std::vector<int> contributed_ ABSL_GUARDED_BY(ranks_mu_);
  // The number of full buckets over all devices, and of gradients that some ranks have contributed
  // and others have not. For even and for odd steps: at most two steps are in progress.
  std::array<std::atomic<int>, 2> under_way_ = {};
  std::atomic<bool> is_aborted_ = false;
  mutable absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Lane>> lanes_;  // last: their threads use all of the above
};

}  // namespace muster
