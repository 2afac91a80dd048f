#include "lib/data/order/block_order.h"

#include <algorithm>

#include "glog/logging.h"
#include "lib/data/order/permutation.h"
#include "lib/data/order/random_stream.h"

namespace muster {
namespace {

// Not an index that Permuted() uses.
constexpr uint64_t kShortBlockIndex = uint64_t{1} << 63;

}  // namespace

BlockOrder::BlockOrder(const Options& options)
    : seed_(options.seed),
      samples_(options.samples),
      epoch_samples_(options.epoch_samples),
      batch_size_(options.batch_size),
      block_samples_(std::min(options.block_samples, options.samples)),
      full_blocks_(samples_ / block_samples_),
      short_samples_(samples_ % block_samples_),
      window_blocks_((options.window_blocks + options.lanes - 1) / options.lanes),
      lane_width_(options.batch_size / options.lanes) {
  CHECK(1 <= epoch_samples_ && epoch_samples_ <= samples_) << epoch_samples_;
  CHECK(block_samples_ >= 1 && window_blocks_ >= 1 && lane_width_ >= 1);
  CHECK_EQ(options.batch_size % options.lanes, 0);
}

SampleRef BlockOrder::At(int64_t position) const {
  const int64_t epoch = position / epoch_samples_;
  const int64_t begin = epoch * epoch_samples_ % batch_size_, end = begin + epoch_samples_;
  const int64_t here = begin + position % epoch_samples_;
  const int64_t lane = here % batch_size_ / lane_width_;
  const auto count = [&](auto before) { return before(end) - before(begin); };
  // The lane's run of the sequence.
  const int64_t first = count([&](int64_t p) { return CountInLanesBefore(p, lane); });
  const int64_t last = first + count([&](int64_t p) { return CountBefore(p, lane); });
  const int64_t at = first + CountBefore(here, lane) - CountBefore(begin, lane);

  const Sequence sequence = SequenceOf(epoch);
  const int64_t window = PlaceOf(sequence, at) / window_blocks_ * window_blocks_;
  const int64_t window_first = std::max(first, StartOf(sequence, window));
  const int64_t window_last = std::min(last, StartOf(sequence, window + window_blocks_));
  // A window that two lanes cut has a permutation for each part.
  const uint64_t key =
      RandomNumber(seed_, StreamOf(RandomStream::kBlockWindow, epoch), window_first);
  const int64_t permuted = window_first + Permuted(key, StreamOf(RandomStream::kBlockWindow, 0),
                                                   window_last - window_first, at - window_first);
  return {epoch, SampleAt(sequence, permuted)};
}

// Returns how many of the positions [0, position) belong to `lane`.
int64_t BlockOrder::CountBefore(int64_t position, int64_t lane) const {
  const int64_t of_last_batch = position % batch_size_ - lane * lane_width_;
  return position / batch_size_ * lane_width_ + std::clamp<int64_t>(of_last_batch, 0, lane_width_);
}

// Returns how many of the positions [0, position) belong to lanes before `lane`.
int64_t BlockOrder::CountInLanesBefore(int64_t position, int64_t lane) const {
  const int64_t width = lane * lane_width_;
  return position / batch_size_ * width + std::min(position % batch_size_, width);
}

BlockOrder::Sequence BlockOrder::SequenceOf(int64_t epoch) const {
  const uint64_t number =
      RandomNumber(seed_, StreamOf(RandomStream::kBlockOrder, epoch), kShortBlockIndex);
  return {epoch, static_cast<int64_t>(number % static_cast<uint64_t>(full_blocks_ + 1))};
}

// Returns the number of samples before the block at `place` of the sequence.
int64_t BlockOrder::StartOf(const Sequence& sequence, int64_t place) const {
  if (short_samples_ == 0 || place <= sequence.short_at) return place * block_samples_;
  return (place - 1) * block_samples_ + short_samples_;
}

// Returns the place in the sequence of the block that has its sample number `at`.
int64_t BlockOrder::PlaceOf(const Sequence& sequence, int64_t at) const {
  const int64_t short_start = sequence.short_at * block_samples_;
  if (short_samples_ == 0 || at < short_start) return at / block_samples_;
  if (at < short_start + short_samples_) return sequence.short_at;
  return (at - short_samples_) / block_samples_ + 1;
}

int64_t BlockOrder::SampleAt(const Sequence& sequence, int64_t at) const {
  const int64_t place = PlaceOf(sequence, at);
  const int64_t offset = at - StartOf(sequence, place);
  if (short_samples_ > 0 && place == sequence.short_at) {
    return full_blocks_ * block_samples_ + offset;
  }
  const int64_t of_full = short_samples_ > 0 && place > sequence.short_at ? place - 1 : place;
  const int64_t block =
      Permuted(seed_, StreamOf(RandomStream::kBlockOrder, sequence.epoch), full_blocks_, of_full);
  return block * block_samples_ + offset;
}

}  // namespace muster
