#include "lib/collective/counted_communicator.h"

#include <utility>

#include "absl/time/time.h"
#include "lib/concurrency/steady_wait.h"

namespace muster {

CountedCommunicator::CountedCommunicator(std::unique_ptr<Communicator> counted,
                                         CollectiveLibrary library, Metrics& metrics)
    : counted_(std::move(counted)) {
  static constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather",
                                           "broadcast"};
  const bool finishes = library == CollectiveLibrary::kSharedMemory;
  for (size_t operation = 0; operation < counts_.size(); ++operation) {
    const MetricLabels labels = {{"library", finishes ? "shared_memory" : "nccl"},
                                 {"operation", kNames[operation]}};
    counts_[operation] = {
        .operations = &metrics.Counter(
            "muster_collective_operations_total",
            "Collective operations among the devices of a worker, of each device", labels),
        .bytes = &metrics.Counter("muster_collective_bytes_total",
                                  "Bytes of what they worked on, of each device", labels)};
    if (!finishes) continue;
    counts_[operation].duration = &metrics.Histogram(
        "muster_collective_duration_seconds",
        "Time of one of them on one device, with waiting for the others; not of NCCL's, which go "
        "on when they return",
        labels);
  }
}

absl::Status CountedCommunicator::Count(Operation operation, int64_t bytes,
                                        absl::FunctionRef<absl::Status()> call) {
  const Counts& counts = counts_[static_cast<size_t>(operation)];
  const absl::Duration begin = SteadyNow();
  absl::Status called = call();
  if (!called.ok()) return called;
  counts.operations->Increment();
  counts.bytes->Increment(static_cast<double>(bytes));
  if (counts.duration != nullptr) {
    const absl::Duration time = SteadyNow() - begin;
    time_ += time;
    counts.duration->Observe(absl::ToDoubleSeconds(time));
  }
  return called;
}

absl::Status CountedCommunicator::AllReduce(TypedBuffer data, CollectiveStream stream) {
  return Count(Operation::kAllReduce, data.bytes(),
               [&] { return counted_->AllReduce(data, stream); });
}

absl::Status CountedCommunicator::ReduceScatter(ConstTypedBuffer data, TypedBuffer slice,
                                                CollectiveStream stream) {
  return Count(Operation::kReduceScatter, data.bytes(),
               [&] { return counted_->ReduceScatter(data, slice, stream); });
}

absl::Status CountedCommunicator::AllGather(ConstTypedBuffer slice, TypedBuffer data,
                                            CollectiveStream stream) {
  return Count(Operation::kAllGather, data.bytes(),
               [&] { return counted_->AllGather(slice, data, stream); });
}

absl::Status CountedCommunicator::Broadcast(TypedBuffer data, int root, CollectiveStream stream) {
  return Count(Operation::kBroadcast, data.bytes(),
               [&] { return counted_->Broadcast(data, root, stream); });
}

}  // namespace muster
