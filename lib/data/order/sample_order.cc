#include "lib/data/order/sample_order.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "lib/data/order/permutation.h"
#include "lib/data/order/random_stream.h"
#include "lib/limits/limits.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"

namespace muster {
namespace {

absl::Status OrderInvalid(absl::string_view field, absl::string_view message) {
  return AtField(WithReason(absl::InvalidArgumentError(message), "DATA_INVALID"), field);
}

int64_t EpochSamples(const v1::DataSpec& data, int64_t samples) {
  if (data.last_batch() == v1::LAST_BATCH_CONTINUE) return samples;
  return samples / data.batch_size() * data.batch_size();
}

absl::StatusOr<BlockOrder> BlockOrderOf(const v1::DataSpec& data, const v1::DatasetFacts& facts,
                                        int64_t epoch_samples) {
  const v1::BlockShuffle& block = data.shuffle().block();
  const int64_t block_samples = block.samples() != 0 ? block.samples() : facts.block_samples();
  if (block_samples < 1) {
    return OrderInvalid("data.shuffle.block.samples", "must be set: the data have no mean size");
  }
  const int64_t lanes = std::max<int64_t>(1, block.lanes());
  if (data.batch_size() % lanes != 0) {
    return OrderInvalid(
        "data.shuffle.block.lanes",
        absl::StrCat("must divide data.batch_size = ", data.batch_size(), " (is ", lanes, ")"));
  }
  return BlockOrder({.seed = data.seed(),
                     .samples = facts.samples(),
                     .epoch_samples = epoch_samples,
                     .batch_size = data.batch_size(),
                     .block_samples = block_samples,
                     .window_blocks = block.window_blocks() != 0 ? block.window_blocks()
                                                                 : limits::kWindowBlocksDefault,
                     .lanes = lanes});
}

}  // namespace

int64_t PermutedSample(uint64_t seed, int64_t epoch, int64_t n, int64_t i) {
  return Permuted(seed, StreamOf(RandomStream::kSampleOrder, epoch), n, i);
}

std::vector<SampleRef> SamplesOf(int64_t epoch, absl::Span<const int64_t> samples) {
  std::vector<SampleRef> refs;
  refs.reserve(samples.size());
  for (const int64_t sample : samples) refs.push_back({epoch, sample});
  return refs;
}

void SampleOrder::FullShuffle::Fill(int64_t first, absl::Span<SampleRef> to) const {
  std::array<int64_t, 64> places;
  while (!to.empty()) {
    const int64_t epoch = first / epoch_samples, at = first % epoch_samples;
    const auto count = std::min({std::ssize(places), std::ssize(to), epoch_samples - at});
    const absl::Span<int64_t> some = absl::MakeSpan(places).first(count);
    std::iota(some.begin(), some.end(), at);
    Permute(seed, StreamOf(RandomStream::kSampleOrder, epoch), samples, some);
    for (int64_t i = 0; i < count; ++i) to[i] = {epoch, some[i]};
    first += count;
    to.remove_prefix(count);
  }
}

void SampleOrder::FileOrder::Fill(int64_t first, absl::Span<SampleRef> to) const {
  for (SampleRef& sample : to) {
    sample = {first / epoch_samples, first % epoch_samples};
    ++first;
  }
}

void SampleOrder::MixtureOrder::Fill(int64_t first, absl::Span<SampleRef> to) const {
  for (SampleRef& sample : to) {
    const Mixture::Draw draw = mixture.At(first++);
    const Part& part = parts[draw.part];
    const int64_t epoch = draw.number / part.samples, at = draw.number % part.samples;
    sample = {epoch, part.first_sample +
                         (is_shuffled ? PermutedSample(part.seed, epoch, part.samples, at) : at)};
  }
}

SampleOrder::SampleOrder(int64_t batch_size, Kind kind)
    : batch_size_(batch_size), kind_(std::move(kind)) {}

absl::StatusOr<SampleOrder> SampleOrder::Create(const v1::DataSpec& data,
                                                const v1::DatasetFacts& facts) {
  const int64_t batch_size = data.batch_size(), samples = facts.samples();
  if (batch_size < 1 || samples < batch_size) {
    return OrderInvalid("data.batch_size", absl::StrCat("must be from 1 to the ", samples,
                                                        " training samples (is ", batch_size, ")"));
  }
  if (data.has_mixture()) {
    ASSIGN_OR_RETURN(MixtureOrder order, MixtureOrderOf(data, facts));
    return SampleOrder(batch_size, std::move(order));
  }
  const int64_t epoch_samples = EpochSamples(data, samples);
  switch (data.shuffle().kind_case()) {
    case v1::ShuffleSpec::kNone:
      return SampleOrder(batch_size, FileOrder{epoch_samples});
    case v1::ShuffleSpec::kFull:
    case v1::ShuffleSpec::KIND_NOT_SET:
      return SampleOrder(batch_size, FullShuffle{data.seed(), samples, epoch_samples});
    case v1::ShuffleSpec::kBlock:
      break;
  }
  ASSIGN_OR_RETURN(const BlockOrder order, BlockOrderOf(data, facts, epoch_samples));
  return SampleOrder(batch_size, order);
}

absl::StatusOr<SampleOrder::MixtureOrder> SampleOrder::MixtureOrderOf(
    const v1::DataSpec& data, const v1::DatasetFacts& facts) {
  if (data.shuffle().has_block()) {
    return OrderInvalid("data.shuffle.block", "a mixture needs a full shuffle or none");
  }
  std::vector<double> weights;
  for (const v1::MixturePart& part : data.mixture().parts()) weights.push_back(part.weight());
  const auto parts = static_cast<int>(weights.size());
  if (parts < 1 || facts.part_samples_size() != parts) {
    return OrderInvalid("data.mixture.parts", absl::StrCat("has ", parts, " parts, the data have ",
                                                           facts.part_samples_size()));
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> slots, Mixture::SlotsOf(weights));
  MixtureOrder order{Mixture(data.seed(), slots), {}, !data.shuffle().has_none()};
  int64_t first = 0;
  for (int part = 0; part < parts; ++part) {
    const int64_t samples = facts.part_samples(part);
    if (samples < 1) {
      return OrderInvalid(absl::StrCat("data.mixture.parts[", part, "]"),
                          "has no training samples");
    }
    order.parts.push_back({SeedOfPart(data.seed(), part), first, samples});
    first += samples;
  }
  return order;
}

SampleOrder SampleOrder::Full(uint64_t seed, int64_t samples, int64_t batch_size) {
  CHECK(1 <= batch_size && batch_size <= samples)
      << "batch of " << batch_size << ", " << samples << " samples";
  return SampleOrder(batch_size, FullShuffle{seed, samples, samples / batch_size * batch_size});
}

int64_t SampleOrder::window_steps() const {
  const auto* const blocks = std::get_if<BlockOrder>(&kind_);
  return blocks == nullptr ? 0 : blocks->window_steps();
}

std::vector<SampleRef> SampleOrder::SamplesOfStep(int64_t step, int64_t first_position,
                                                  int64_t count) const {
  CHECK_GE(step, 0);
  CHECK(0 <= first_position && 0 <= count && count <= batch_size_ - first_position)
      << "positions " << first_position << " + " << count << " of " << batch_size_;
  std::vector<SampleRef> refs(count);
  const int64_t first = step * batch_size_ + first_position;
  std::visit([&](const auto& kind) { kind.Fill(first, absl::MakeSpan(refs)); }, kind_);
  return refs;
}

}  // namespace muster
