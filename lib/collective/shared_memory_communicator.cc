#include "lib/collective/shared_memory_communicator.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "kernels/cpu/conversion_loops.h"
#include "kernels/cpu/simd_level.h"
#include "kernels/optimizer/optimizer.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// Number of elements that are summed at once: so few that the sums are still in the cache when they
// are read again.
constexpr int64_t kBlockElements = 16384;

// Longest sleep before the rank checks whether the group was aborted.
constexpr absl::Duration kSleepMax = absl::Milliseconds(100);
constexpr absl::Duration kPollInterval = absl::Microseconds(50);

void SleepWhile(std::atomic<uint32_t>& word, uint32_t value, absl::Duration at_most) {
  const timespec timeout = absl::ToTimespec(at_most);
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &timeout, nullptr, 0);
}

void WakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Compares the difference, because the counters wrap.
bool HasReached(uint32_t meetings, uint32_t wanted) {
  return static_cast<int32_t>(meetings - wanted) >= 0;
}

// The slice [begin, end) of `rank` in `elements`, as even as possible.
std::pair<int64_t, int64_t> SliceOf(int64_t elements, int rank, int world_size) {
  return {elements * rank / world_size, elements * (rank + 1) / world_size};
}

const std::byte* At(const void* data, CollectiveType type, int64_t i) {
  return static_cast<const std::byte*>(data) + i * BytesOf(type);
}

void Copy(void* to, const void* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Requires: not f64, which SumGradients() cannot add.
kernels::FloatType FloatTypeOf(CollectiveType type) {
  switch (type) {
    case CollectiveType::kF32:
      return kernels::FloatType::kF32;
    case CollectiveType::kBf16:
      return kernels::FloatType::kBf16;
    case CollectiveType::kF16:
      return kernels::FloatType::kF16;
    case CollectiveType::kF64:
      break;
  }
  LOG(FATAL) << "collective type " << static_cast<int>(type) << " is not added in f32";
}

const kernels::ConversionLoops& Conversions() {
  return kernels::ForThisProcessor(kernels::baseline::kConversionLoops,
                                   kernels::avx2::kConversionLoops,
                                   kernels::avx512::kConversionLoops);
}

}  // namespace

class SharedMemoryGroup::Member : public Communicator {
 public:
  Member(SharedMemoryGroup* group, int rank)
      : group_(*group), rank_(rank), gradients_(group->world_size()) {}

  int rank() const override { return rank_; }
  int world_size() const override { return group_.world_size(); }

  absl::Status AllReduce(TypedBuffer data, CollectiveStream) override {
    RETURN_IF_ERROR(Begin({.operation = Operation::kAllReduce,
                           .type = data.type,
                           .in = data.data,
                           .out = data.data,
                           .elements = data.elements}));
    const auto [begin, end] = SliceOf(data.elements, rank_, world_size());
    Sum(data.at(begin), data.type, begin, end);
    RETURN_IF_ERROR(group_.Meet(rank_, Operation::kAllReduce));
    for (int other = 0; other < world_size(); ++other) {
      const auto [from, to] = SliceOf(data.elements, other, world_size());
      if (other == rank_) continue;
      Copy(data.at(from), At(group_.ranks_[other].call.out, data.type, from),
           (to - from) * BytesOf(data.type));
    }
    return group_.Meet(rank_, Operation::kAllReduce);
  }

  absl::Status ReduceScatter(ConstTypedBuffer data, TypedBuffer slice, CollectiveStream) override {
    CHECK(IsSliceOf(slice, data, world_size())) << slice.elements << ", " << data.elements;
    RETURN_IF_ERROR(Begin({.operation = Operation::kReduceScatter,
                           .type = data.type,
                           .in = data.data,
                           .elements = data.elements}));
    const int64_t begin = slice.elements * rank_;
    Sum(slice.at(0), data.type, begin, begin + slice.elements);
    return group_.Meet(rank_, Operation::kReduceScatter);
  }

  absl::Status AllGather(ConstTypedBuffer slice, TypedBuffer data, CollectiveStream) override {
    CHECK(IsSliceOf(slice, data, world_size())) << slice.elements << ", " << data.elements;
    RETURN_IF_ERROR(Begin({.operation = Operation::kAllGather,
                           .type = data.type,
                           .in = slice.data,
                           .elements = data.elements}));
    for (int other = 0; other < world_size(); ++other) {
      Copy(data.at(other * slice.elements), group_.ranks_[other].call.in, slice.bytes());
    }
    return group_.Meet(rank_, Operation::kAllGather);
  }

  absl::Status Broadcast(TypedBuffer data, int root, CollectiveStream) override {
    CHECK(root >= 0 && root < world_size()) << "root " << root << " of " << world_size();
    RETURN_IF_ERROR(Begin({.operation = Operation::kBroadcast,
                           .type = data.type,
                           .in = data.data,
                           .elements = data.elements,
                           .root = root}));
    Copy(data.data, group_.ranks_[root].call.in, data.bytes());
    return group_.Meet(rank_, Operation::kBroadcast);
  }

  // This library's operations are finished when they return, so `finished` is about other work.
  absl::Status Await(absl::string_view,
                     absl::FunctionRef<absl::StatusOr<bool>()> finished) override {
    for (;;) {
      RETURN_IF_ERROR(group_.aborted());
      ASSIGN_OR_RETURN(const bool is_finished, finished());
      if (is_finished) return absl::OkStatus();
      absl::SleepFor(kPollInterval);
    }
  }
  void Abort(absl::Status why) override { group_.Abort(std::move(why)); }

 private:
  // Publishes this rank's call, and waits for the calls of the others.
  absl::Status Begin(const Call& call) {
    group_.ranks_[rank_].call = call;
    RETURN_IF_ERROR(group_.Meet(rank_, call.operation));
    for (int other = 0; other < world_size(); ++other) {
      const Call& theirs = group_.ranks_[other].call;
      CHECK(theirs.operation == call.operation && theirs.elements == call.elements &&
            theirs.type == call.type && theirs.root == call.root)
          << "rank " << other << " is in operation " << static_cast<int>(theirs.operation) << " on "
          << theirs.elements << " elements of type " << static_cast<int>(theirs.type) << ", rank "
          << rank_ << " in " << static_cast<int>(call.operation) << " on " << call.elements
          << " of type " << static_cast<int>(call.type);
    }
    return absl::OkStatus();
  }

  // out = elements [begin, end) of the sum of all ranks' data.
  void Sum(std::byte* out, CollectiveType type, int64_t begin, int64_t end) {
    if (type == CollectiveType::kF64) {
      return SumDoubles(reinterpret_cast<double*>(out), begin, end);
    }
    for (int64_t at = begin; at < end; at += kBlockElements) {
      const int64_t n = std::min(kBlockElements, end - at);
      for (int other = 0; other < world_size(); ++other) {
        gradients_[other] = {.elements = At(group_.ranks_[other].call.in, type, at),
                             .type = FloatTypeOf(type)};
      }
      SumBlock(out, type, n);
      out += n * BytesOf(type);
    }
  }

  // out = the sum of gradients_. This rank's own gradient may be `out`, so 16-bit sums are complete
  // in f32 before the first is written.
  void SumBlock(std::byte* out, CollectiveType type, int64_t n) {
    const bool is_f32 = type == CollectiveType::kF32;
    if (!is_f32) sums_.resize(kBlockElements);
    float* const sums = is_f32 ? reinterpret_cast<float*>(out) : sums_.data();
    kernels::SumGradients(sums, gradients_.data(), world_size(), n);
    if (is_f32) return;
    const auto narrow =
        type == CollectiveType::kBf16 ? Conversions().f32_to_bf16 : Conversions().f32_to_f16;
    narrow(reinterpret_cast<uint16_t*>(out), sums, n);
  }

  void SumDoubles(double* out, int64_t begin, int64_t end) {
    const auto term = [&](int rank, int64_t i) {
      return static_cast<const double*>(group_.ranks_[rank].call.in)[i];
    };
    for (int64_t i = begin; i < end; ++i) {
      double sum = term(0, i);
      for (int rank = 1; rank < world_size(); ++rank) sum += term(rank, i);
      out[i - begin] = sum;
    }
  }

  SharedMemoryGroup& group_;
  const int rank_;
  std::vector<kernels::Gradient> gradients_;  // of the present block
  std::vector<float> sums_;  // 16-bit sums of a block in f32; empty before the first
};

SharedMemoryGroup::SharedMemoryGroup(int world_size, absl::Duration timeout)
    : timeout_(timeout), ranks_(world_size) {}

SharedMemoryGroup::~SharedMemoryGroup() = default;

std::unique_ptr<Communicator> SharedMemoryGroup::Join(int rank) {
  CHECK(rank >= 0 && rank < world_size()) << "rank " << rank << " of " << world_size();
  return std::make_unique<Member>(this, rank);
}

absl::Status SharedMemoryGroup::aborted() const {
  if (!is_aborted_.load(std::memory_order_acquire)) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  return aborted_;
}

void SharedMemoryGroup::Abort(absl::Status why) {
  CHECK(!why.ok());
  {
    absl::MutexLock lock(&mu_);
    if (aborted_.ok()) aborted_ = std::move(why);
    is_aborted_.store(true, std::memory_order_release);
  }
  for (Rank& rank : ranks_) WakeAll(rank.meetings);
}

absl::Status SharedMemoryGroup::Meet(int rank, Operation operation) {
  RETURN_IF_ERROR(aborted());
  Rank& self = ranks_[rank];
  const uint32_t meeting = self.meetings.load(std::memory_order_relaxed) + 1;
  // The store must precede the read of `sleepers`: a rank that is about to sleep then sees the
  // meeting.
  self.meetings.store(meeting);
  if (self.sleepers.load() > 0) WakeAll(self.meetings);
  const absl::Duration deadline = SteadyNow() + timeout_;
  for (int other = 0; other < world_size(); ++other) {
    RETURN_IF_ERROR(AwaitRank(rank, other, meeting, operation, deadline));
  }
  return absl::OkStatus();
}

absl::Status SharedMemoryGroup::AwaitRank(int rank, int other, uint32_t meeting,
                                          Operation operation, absl::Duration deadline) {
  static constexpr const char* kNames[] = {"AllReduce", "ReduceScatter", "AllGather", "Broadcast"};
  Rank& awaited = ranks_[other];
  if (HasReached(awaited.meetings.load(std::memory_order_acquire), meeting)) {
    return absl::OkStatus();
  }
  // Count this rank as a sleeper before it checks `meetings` again. Meet() stores `meetings` before
  // it reads `sleepers`, and all four accesses are sequentially consistent. So either the check
  // sees the meeting, or the arriving rank sees a sleeper and wakes it.
  awaited.sleepers.fetch_add(1);
  absl::Status status;
  for (;;) {
    const uint32_t seen = awaited.meetings.load();
    if (HasReached(seen, meeting)) break;
    status = aborted();
    const absl::Duration left = deadline - SteadyNow();
    if (status.ok() && left <= absl::ZeroDuration()) {
      std::vector<int> missing;
      for (int r = 0; r < world_size(); ++r) {
        if (!HasReached(ranks_[r].meetings.load(), meeting)) missing.push_back(r);
      }
      status = WithReason(
          absl::DeadlineExceededError(absl::StrCat(
              kNames[static_cast<int>(operation)], ": rank ", rank, " has waited ",
              absl::FormatDuration(timeout_), " for device ", absl::StrJoin(missing, ", "))),
          "COLLECTIVE_TIMEOUT");
      Abort(status);
    }
    if (!status.ok()) break;
    SleepWhile(awaited.meetings, seen, std::min(left, kSleepMax));
  }
  awaited.sleepers.fetch_sub(1);
  return status;
}

}  // namespace muster
