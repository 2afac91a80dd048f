// Exports metrics of collective operations.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "lib/collective/communicator.h"
#include "lib/telemetry/metrics.h"
#include "prometheus/counter.h"
#include "prometheus/histogram.h"

namespace muster {

enum class CollectiveLibrary { kNccl, kSharedMemory };

// One rank of a group. Counts its operations in muster_collective_operations_total and
// muster_collective_bytes_total, with labels library and operation. Operations of NCCL are only
// enqueued when they return, so their duration is not known. Operations in shared memory are
// finished, so muster_collective_duration_seconds observes them.
//
// Keeps references into `metrics`, which must outlive it, so that each metric is looked up once.
class CountedCommunicator : public Communicator {
 public:
  CountedCommunicator(std::unique_ptr<Communicator> counted, CollectiveLibrary library,
                      Metrics& metrics);

  int rank() const override { return counted_->rank(); }
  int world_size() const override { return counted_->world_size(); }
  absl::Status AllReduce(TypedBuffer data, CollectiveStream stream) override;
  absl::Status ReduceScatter(ConstTypedBuffer data, TypedBuffer slice,
                             CollectiveStream stream) override;
  absl::Status AllGather(ConstTypedBuffer slice, TypedBuffer data,
                         CollectiveStream stream) override;
  absl::Status Broadcast(TypedBuffer data, int root, CollectiveStream stream) override;
  absl::Status Await(absl::string_view what,
                     absl::FunctionRef<absl::StatusOr<bool>()> finished) override {
    return counted_->Await(what, finished);
  }
  void Abort(absl::Status why) override { counted_->Abort(std::move(why)); }
  void Leave(absl::Status why) override { counted_->Leave(std::move(why)); }

  // Returns the time of the rank's operations since the last call: 0 with NCCL. Called on the
  // rank's thread.
  absl::Duration TakeTime() { return std::exchange(time_, absl::ZeroDuration()); }

 private:
  enum class Operation { kAllReduce, kReduceScatter, kAllGather, kBroadcast };
  struct Counts {
    prometheus::Counter* operations = nullptr;
    prometheus::Counter* bytes = nullptr;
    prometheus::Histogram* duration = nullptr;  // null: the duration is not known
  };

  // Runs `call` and counts it unless it fails. `bytes`: size of the whole, not of a rank's slice.
  absl::Status Count(Operation operation, int64_t bytes, absl::FunctionRef<absl::Status()> call);

  const std::unique_ptr<Communicator> counted_;
  std::array<Counts, 4> counts_;  // by operation
  absl::Duration time_;           // since TakeTime()
};

}  // namespace muster
