// Stands for all ranks of a group, to measure what one rank computes.
#pragma once

#include <cstring>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "lib/collective/communicator.h"
#include "lib/collective/typed_buffer.h"

namespace muster {

// Rank 0 of a group of which it is the only rank. Operations return at once. Sums are those of this
// rank alone, and in host memory a gather has its slice for every rank, so results have no meaning.
class LoneCommunicator : public Communicator {
 public:
  explicit LoneCommunicator(int world_size) : world_size_(world_size) {}

  int rank() const override { return 0; }
  int world_size() const override { return world_size_; }
  absl::Status AllReduce(TypedBuffer, CollectiveStream) override { return absl::OkStatus(); }
  absl::Status ReduceScatter(ConstTypedBuffer, TypedBuffer, CollectiveStream) override {
    return absl::OkStatus();
  }
  absl::Status AllGather(ConstTypedBuffer slice, TypedBuffer data,
                         CollectiveStream stream) override {
    if (stream != nullptr) return absl::OkStatus();
    for (int rank = 0; rank < world_size_; ++rank) {
      std::memmove(data.at(rank * slice.elements), slice.data, slice.bytes());
    }
    return absl::OkStatus();
  }
  absl::Status Broadcast(TypedBuffer, int, CollectiveStream) override { return absl::OkStatus(); }
  absl::Status Await(absl::string_view,
                     absl::FunctionRef<absl::StatusOr<bool>()> finished) override {
    for (;; absl::SleepFor(absl::Microseconds(20))) {
      const absl::StatusOr<bool> is_finished = finished();
      if (!is_finished.ok()) return is_finished.status();
      if (*is_finished) return absl::OkStatus();
    }
  }
  void Abort(absl::Status) override {}

 private:
  const int world_size_;
};

}  // namespace muster
