#include "lib/data/order/block_order.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>

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

struct BlockOrder::Run {
  Sequence sequence;
  int64_t window_first, window_last;  // samples of the sequence
  int64_t at;                         // the sample of the sequence that the position has, unmixed
  int64_t positions;                  // from this one on, >= 1
};

BlockOrder::Run BlockOrder::RunAt(int64_t position) const {
  const int64_t epoch = position / epoch_samples_, in_epoch = position % epoch_samples_;
  const int64_t begin = epoch * epoch_samples_ % batch_size_, end = begin + epoch_samples_;
  const int64_t here = begin + in_epoch;
  const int64_t lane = here % batch_size_ / lane_width_;
  const auto count = [&](auto before) { return before(end) - before(begin); };
  // The lane's run of the sequence.
  const int64_t first = count([&](int64_t p) { return CountInLanesBefore(p, lane); });
  const int64_t last = first + count([&](int64_t p) { return CountBefore(p, lane); });
  const int64_t at = first + CountBefore(here, lane) - CountBefore(begin, lane);

  const Sequence sequence = SequenceOf(epoch);
  const int64_t window = PlaceOf(sequence, at) / window_blocks_ * window_blocks_;
  const int64_t window_last = std::min(last, StartOf(sequence, window + window_blocks_));
  return {.sequence = sequence,
          .window_first = std::max(first, StartOf(sequence, window)),
          .window_last = window_last,
          .at = at,
          .positions = std::min({window_last - at, epoch_samples_ - in_epoch,
                                 lane_width_ - here % batch_size_ % lane_width_})};
}

int64_t BlockOrder::window_steps() const {
  return (window_blocks_ * block_samples_ + lane_width_ - 1) / lane_width_;
}

void BlockOrder::Fill(int64_t first, absl::Span<SampleRef> to) const {
  std::array<int64_t, 64> places, blocks;
  while (!to.empty()) {
    const Run run = RunAt(first);
    const Sequence& sequence = run.sequence;
    const auto count = std::min({run.positions, std::ssize(to), std::ssize(places)});
    std::iota(places.begin(), places.begin() + count, run.at - run.window_first);
    // A window that two lanes cut has a permutation for each part.
    const uint64_t key =
        RandomNumber(seed_, StreamOf(RandomStream::kBlockWindow, sequence.epoch), run.window_first);
    Permute(key, StreamOf(RandomStream::kBlockWindow, 0), run.window_last - run.window_first,
            absl::MakeSpan(places).first(count));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = run.window_first + places[i];
      places[i] = PlaceOf(sequence, at);
      blocks[i] = FullBlocksBefore(sequence, places[i]);
      to[i] = {sequence.epoch, at - StartOf(sequence, places[i])};
    }
    Permute(seed_, StreamOf(RandomStream::kBlockOrder, sequence.epoch), full_blocks_,
            absl::MakeSpan(blocks).first(count));
    for (int64_t i = 0; i < count; ++i) {
      const bool is_short = short_samples_ > 0 && places[i] == sequence.short_at;
      to[i].sample += (is_short ? full_blocks_ : blocks[i]) * block_samples_;
    }
    first += count;
    to.remove_prefix(count);
  }
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

// Returns the number of full blocks before the block at `place` of the sequence. The block that is
// not full counts as the first one if it is the last, so that the number is always that of a block.
int64_t BlockOrder::FullBlocksBefore(const Sequence& sequence, int64_t place) const {
  const bool is_behind_short = short_samples_ > 0 && place > sequence.short_at;
  return (is_behind_short ? place - 1 : place) % full_blocks_;
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

}  // namespace muster
