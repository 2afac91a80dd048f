#include "lib/collective/gradient_reduction.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/log/log_scope.h"
#include "lib/status/status.h"

namespace muster {

GradientReduction::GradientReduction(Options options)
    : options_(std::move(options)),
      pieces_of_parameter_(options_.layout.offsets.size()),
      order_(options_.pieces.size()),
      missing_floats_(options_.pieces.size()),
      contributed_(options_.ranks > 1 ? options_.memory.size() * options_.layout.offsets.size()
                                      : 0) {
  const std::vector<Piece>& pieces = options_.pieces;
  std::iota(order_.begin(), order_.end(), 0);
  std::ranges::sort(order_, {}, [&](int piece) { return pieces[piece].begin; });
  std::vector<int> by_offset(options_.layout.offsets.size());
  std::iota(by_offset.begin(), by_offset.end(), 0);
  std::ranges::sort(by_offset, {}, [&](int p) { return options_.layout.offsets[p]; });
  auto parameter = by_offset.begin();
  for (const int piece : order_) {
    while (std::next(parameter) != by_offset.end() &&
           options_.layout.offsets[*std::next(parameter)] <= pieces[piece].begin) {
      ++parameter;
    }
    pieces_of_parameter_[*parameter].push_back(piece);
    missing_floats_[piece] = pieces[piece].end - pieces[piece].begin;
  }
  if (options_.communicators.empty()) return;
  CHECK_EQ(options_.communicators.size(), options_.memory.size());
  for (const GradientBucket& bucket : options_.layout.buckets) {
    is_reduced_.push_back(
        options_.frozen.empty() ||
        !std::ranges::all_of(bucket.parameters, [this](int p) { return options_.frozen[p]; }));
  }
  for (int device = 0; device < devices(); ++device) {
    lanes_.push_back(std::make_unique<Lane>(options_.layout.buckets.size()));
    absl::MutexLock lock(&lanes_.back()->mu);
    for (const GradientBucket& bucket : options_.layout.buckets) {
      lanes_.back()->missing.push_back(static_cast<int>(bucket.parameters.size()));
    }
  }
  for (int device = 0; device < devices(); ++device) {
    lanes_[device]->thread = std::jthread([this, device, fields = LogScope::Current()] {
      const LogScope scope(fields);
      ReduceBuckets(device);
    });
  }
}

// Closing the mailboxes ends lanes that wait for a bucket; Abort() ends lanes inside a collective
// operation. Both must come before the threads are joined.
GradientReduction::~GradientReduction() {
  for (const auto& lane : lanes_) lane->full.Close();
  if (!lanes_.empty()) Abort(absl::CancelledError("the job ends"));
}

absl::Status GradientReduction::Contribute(int device, int parameter, int64_t step) {
  RETURN_IF_ERROR(status());
  if (devices() > 1) return CountDown(device, parameter, step);
  if (!IsComplete(device, parameter, step)) return absl::OkStatus();
  for (const int piece : pieces_of_parameter_[parameter]) {
    RETURN_IF_ERROR(options_.reduced(piece, step));
  }
  if (options_.ranks > 1) EndOf(step);
  return absl::OkStatus();
}

// Counts the rank's contribution. Returns whether it is the last one. If there are several ranks,
// the step is under way from the first contribution until the caller ends it after the last.
bool GradientReduction::IsComplete(int device, int parameter, int64_t step) {
  if (options_.ranks == 1) return true;
  const size_t parameters = options_.layout.offsets.size();
  absl::MutexLock lock(&ranks_mu_);
  int& contributed = contributed_[device * parameters + parameter];
  if (++contributed == 1) under_way_[step & 1].fetch_add(1);
  if (contributed < options_.ranks) return false;
  contributed = 0;
  return true;
}

// Counts the gradient, and posts the bucket that it fills.
absl::Status GradientReduction::CountDown(int device, int parameter, int64_t step) {
  const int bucket = options_.layout.bucket_of[parameter];
  if (!is_reduced_[bucket]) return absl::OkStatus();
  Lane& lane = *lanes_[device];
  {
    absl::MutexLock lock(&lane.mu);
    if (!IsComplete(device, parameter, step)) return absl::OkStatus();
    int& missing = lane.missing[bucket];
    if (--missing == 0) {
      missing = static_cast<int>(options_.layout.buckets[bucket].parameters.size());
      under_way_[step & 1].fetch_add(1);
      // The mailbox has room for every bucket, and a bucket leaves it before it can be full again.
      // If a post were lost, the lanes would sum different buckets.
      CHECK(lane.full.TryPost({bucket, step}))
          << "device " << device << " is too far ahead with bucket " << bucket << " of "
          << NameOf(step);
    }
  }
  if (options_.ranks > 1) EndOf(step);
  return absl::OkStatus();
}

// Ends a bucket or gradient that was under way.
void GradientReduction::EndOf(int64_t step) {
  absl::MutexLock lock(&mu_);  // wakes AwaitAnnounced()
  under_way_[step & 1].fetch_sub(1);
}

void GradientReduction::ReduceBuckets(int device) {
  FullBucket full;
  while (lanes_[device]->full.Take(full, absl::InfiniteDuration())) {
    lanes_[device]->reducing = full.bucket;
    if (status().ok()) {
      if (absl::Status reduced = Reduce(device, full); !reduced.ok()) Abort(std::move(reduced));
    }
    lanes_[device]->reducing = -1;
    EndOf(full.step);
  }
}

absl::Status GradientReduction::AwaitAnnounced(int64_t step) {
  absl::MutexLock lock(&mu_);
  auto settled = [this, step]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return under_way_[step & 1].load() == 0 || !aborted_.ok();
  };
  if (AwaitFor(&mu_, absl::Condition(&settled), options_.announce_timeout)) return aborted_;
  return WithReason(absl::DeadlineExceededError(absl::StrCat(
                        "the gradients of ", NameOf(step),
                        " were not summed among the devices of this process in ",
                        absl::FormatDuration(options_.announce_timeout), ": ", NamesOfReducing())),
                    "COLLECTIVE_TIMEOUT");
}

// Returns "step 7", or "step 7 (share 2 of 4)".
std::string GradientReduction::NameOf(int64_t round) const {
  const int64_t rounds = options_.rounds_per_step;
  if (rounds == 1) return absl::StrCat("step ", round);
  return absl::StrCat("step ", round / rounds, " (share ", round % rounds + 1, " of ", rounds, ")");
}

std::string GradientReduction::NamesOfReducing() const {
  std::vector<std::string> names;
  for (int device = 0; device < std::ssize(lanes_); ++device) {
    const int bucket = lanes_[device]->reducing;
    if (bucket < 0) continue;
    names.push_back(absl::StrCat("device ", device, " is at bucket ", bucket, " of ",
                                 options_.layout.buckets.size()));
  }
  return names.empty() ? "no device is at a bucket" : absl::StrJoin(names, ", ");
}

absl::Status GradientReduction::Reduce(int device, const FullBucket& full) {
  const GradientBucket& range = options_.layout.buckets[full.bucket];
  const int64_t length = range.end - range.begin;
  const int64_t slice = length / devices();
  RETURN_IF_ERROR(options_.communicators[device]->ReduceScatter(
      absl::MakeConstSpan(options_.memory[device] + range.begin, length),
      absl::MakeSpan(options_.memory[0] + range.begin + device * slice, slice), nullptr));
  return SliceReduced(device, full.bucket, full.step);
}

absl::Status GradientReduction::SliceReduced(int device, int bucket, int64_t step) {
  RETURN_IF_ERROR(status());
  const GradientBucket& range = options_.layout.buckets[bucket];
  const int64_t slice = (range.end - range.begin) / devices();
  const int64_t begin = range.begin + device * slice;
  return Announce(begin, begin + slice, step);
}

// Marks floats [begin, end) as reduced, and announces the pieces that they complete.
absl::Status GradientReduction::Announce(int64_t begin, int64_t end, int64_t step) {
  const std::vector<Piece>& pieces = options_.pieces;
  auto at = std::ranges::partition_point(order_, [&](int p) { return pieces[p].end <= begin; });
  for (; at != order_.end() && pieces[*at].begin < end; ++at) {
    const Piece& piece = pieces[*at];
    const int64_t covered = std::min(end, piece.end) - std::max(begin, piece.begin);
    std::atomic<int64_t>& missing = missing_floats_[*at];
    // acq_rel makes a release sequence: the lane that adds the last floats sees the writes of all
    // lanes.
    if (missing.fetch_sub(covered, std::memory_order_acq_rel) > covered) continue;
    // Reset the count for the next step before this piece is announced. No lane counts down for the
    // next step before the sums are exchanged, and the exchange learns of the piece only now.
    missing.store(piece.end - piece.begin, std::memory_order_relaxed);
    RETURN_IF_ERROR(options_.reduced(*at, step));
  }
  return absl::OkStatus();
}

absl::Status GradientReduction::status() const {
  if (!is_aborted_.load(std::memory_order_acquire)) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  return aborted_;
}

void GradientReduction::Abort(absl::Status why) {
  CHECK(!why.ok());
  {
    absl::MutexLock lock(&mu_);
    if (aborted_.ok()) aborted_ = why;
    is_aborted_.store(true, std::memory_order_release);
  }
  for (const auto& communicator : options_.communicators) communicator->Abort(why);
}

}  // namespace muster
