#include "lib/data/order/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/data/order/random_stream.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// Neighbours in a round are this many slots apart. It is odd, so a round visits every slot. It is
// close to the golden ratio of kSlots, and its continued fraction has no term above 3, so that the
// slots of any run are spread evenly.
constexpr int64_t kStride = 40521;

absl::Status WeightInvalid(size_t part, double weight, absl::string_view message) {
  return AtField(WithReason(absl::InvalidArgumentError(absl::StrCat(message, " (is ", weight, ")")),
                            "DATA_INVALID"),
                 absl::StrCat("data.mixture.parts[", part, "].weight"));
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> Mixture::SlotsOf(absl::Span<const double> weights) {
  // Weights are scaled by the largest one, so that their sum is finite.
  double largest = 0;
  for (size_t part = 0; part < weights.size(); ++part) {
    if (!std::isfinite(weights[part]) || weights[part] <= 0) {
      return WeightInvalid(part, weights[part], "must be finite and above 0");
    }
    largest = std::max(largest, weights[part]);
  }
  double sum = 0;
  for (const double weight : weights) sum += weight / largest;
  std::vector<int64_t> slots;
  std::vector<double> fractions;
  for (const double weight : weights) {
    const double exact = weight / largest / sum * kSlots;
    slots.push_back(static_cast<int64_t>(exact));
    fractions.push_back(exact - std::floor(exact));
  }
  std::vector<size_t> by_fraction(weights.size());
  std::iota(by_fraction.begin(), by_fraction.end(), size_t{0});
  std::ranges::stable_sort(by_fraction,
                           [&](size_t a, size_t b) { return fractions[a] > fractions[b]; });
  const int64_t left = kSlots - std::accumulate(slots.begin(), slots.end(), int64_t{0});
  for (int64_t i = 0; i < left; ++i) ++slots[by_fraction[i]];
  for (size_t part = 0; part < slots.size(); ++part) {
    if (slots[part] > 0) continue;
    return WeightInvalid(part, weights[part],
                         absl::StrCat("must be at least 1/", kSlots, " of the sum of all weights"));
  }
  return slots;
}

Mixture::Mixture(uint64_t seed, absl::Span<const int64_t> slots)
    : slots_(slots.begin(), slots.end()) {
  CHECK(!slots.empty() && slots.size() <= 256) << slots.size();
  std::vector<int64_t> ends(slots.size());
  std::partial_sum(slots.begin(), slots.end(), ends.begin());
  CHECK_EQ(ends.back(), kSlots);
  auto slot = static_cast<int64_t>(RandomNumber(seed, StreamOf(RandomStream::kMixtureSlots, 0), 0) %
                                   uint64_t{kSlots});
  std::vector<int64_t> seen(slots.size());
  auto round = std::make_shared<Round>();
  for (int64_t i = 0; i < kSlots; ++i) {
    const auto part = std::ranges::upper_bound(ends, slot) - ends.begin();
    round->part[i] = static_cast<uint8_t>(part);
    round->number[i] = static_cast<uint16_t>(seen[part]++);
    slot = (slot + kStride) % kSlots;
  }
  round_ = std::move(round);
}

Mixture::Draw Mixture::At(int64_t position) const {
  const int64_t at = position % kSlots;
  const int part = round_->part[at];
  return {part, position / kSlots * slots_[part] + round_->number[at]};
}

}  // namespace muster
