#include "lib/collective/shared_memory_communicator.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
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

}  // namespace

class SharedMemoryGroup::Member : public Communicator {
 public:
  Member(SharedMemoryGroup* group, int rank)
      : group_(*group), rank_(rank), gradients_(group->world_size()) {}

  int rank() const override { return rank_; }
  int world_size() const override { return group_.world_size(); }

  absl::Status AllReduce(absl::Span<float> data, CollectiveStream) override {
    const auto elements = static_cast<int64_t>(data.size());
    RETURN_IF_ERROR(Begin({.operation = Operation::kAllReduce,
                           .in = data.data(),
                           .out = data.data(),
                           .elements = elements}));
    const auto [begin, end] = SliceOf(elements, rank_, world_size());
    Sum(data.data() + begin, begin, end);
    RETURN_IF_ERROR(group_.Meet(rank_, Operation::kAllReduce));
    for (int other = 0; other < world_size(); ++other) {
      const auto [from, to] = SliceOf(elements, other, world_size());
      if (other != rank_) Copy(data.data() + from, group_.ranks_[other].call.out + from, to - from);
    }
    return group_.Meet(rank_, Operation::kAllReduce);
  }

  absl::Status ReduceScatter(absl::Span<const float> data, absl::Span<float> slice,
                             CollectiveStream) override {
    CHECK_EQ(slice.size() * world_size(), data.size());
    RETURN_IF_ERROR(Begin({.operation = Operation::kReduceScatter,
                           .in = data.data(),
                           .elements = static_cast<int64_t>(data.size())}));
    const auto begin = static_cast<int64_t>(slice.size()) * rank_;
    Sum(slice.data(), begin, begin + static_cast<int64_t>(slice.size()));
    return group_.Meet(rank_, Operation::kReduceScatter);
  }

  absl::Status AllGather(absl::Span<const float> slice, absl::Span<float> data,
                         CollectiveStream) override {
    CHECK_EQ(slice.size() * world_size(), data.size());
    RETURN_IF_ERROR(Begin({.operation = Operation::kAllGather,
                           .in = slice.data(),
                           .elements = static_cast<int64_t>(data.size())}));
    const auto each = static_cast<int64_t>(slice.size());
    for (int other = 0; other < world_size(); ++other) {
      Copy(data.data() + other * each, group_.ranks_[other].call.in, each);
    }
    return group_.Meet(rank_, Operation::kAllGather);
  }

  absl::Status Broadcast(absl::Span<float> data, int root, CollectiveStream) override {
    CHECK(root >= 0 && root < world_size()) << "root " << root << " of " << world_size();
    RETURN_IF_ERROR(Begin({.operation = Operation::kBroadcast,
                           .in = data.data(),
                           .elements = static_cast<int64_t>(data.size()),
                           .root = root}));
    Copy(data.data(), group_.ranks_[root].call.in, static_cast<int64_t>(data.size()));
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
            theirs.root == call.root)
          << "rank " << other << " is in operation " << static_cast<int>(theirs.operation) << " on "
          << theirs.elements << " elements, rank " << rank_ << " in "
          << static_cast<int>(call.operation) << " on " << call.elements;
    }
    return absl::OkStatus();
  }

  // out = elements [begin, end) of the sum of all ranks' data.
  void Sum(float* out, int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kBlockElements) {
      for (int other = 0; other < world_size(); ++other) {
        gradients_[other].elements = group_.ranks_[other].call.in + at;
      }
      kernels::SumGradients(out + (at - begin), gradients_.data(), world_size(),
                            std::min(kBlockElements, end - at));
    }
  }

  static void Copy(float* to, const float* from, int64_t elements) {
    if (to != from) std::memcpy(to, from, static_cast<size_t>(elements) * sizeof(float));
  }

  SharedMemoryGroup& group_;
  const int rank_;
  std::vector<kernels::Gradient> gradients_;  // of the present block
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
