// Which part of a mixture gives which sample.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/limits/limits.h"

namespace muster {

// Divides the positions of a job among the parts of a mixture. A round of kSlots positions has
// exactly SlotsOf() of each part, spread evenly: the number of a part's samples in any run of
// positions is within a few of its share of the run. All rounds are alike; the seed says where one
// begins. Pure and immutable; copies are cheap. A position takes O(1) time.
class Mixture {
 public:
  static constexpr int64_t kSlots = limits::kMixtureSlots;

  // Returns the integers in proportion to `weights` that sum to kSlots: the remainders that
  // rounding down leaves go to the largest fractions. Returns INVALID_ARGUMENT, with the field at
  // fault, if a weight is not finite and positive, or has less than one slot.
  static absl::StatusOr<std::vector<int64_t>> SlotsOf(absl::Span<const double> weights);

  // `slots` sum to kSlots, and each is at least 1. There are 1 to 256.
  Mixture(uint64_t seed, absl::Span<const int64_t> slots);

  struct Draw {
    int part = 0;
    int64_t number = 0;  // how many samples the part gave before
  };
  Draw At(int64_t position) const;

 private:
  struct Round {
    std::array<uint8_t, kSlots> part;     // by position in the round
    std::array<uint16_t, kSlots> number;  // within the round
  };

  std::vector<int64_t> slots_;  // by part
  std::shared_ptr<const Round> round_;
};

}  // namespace muster
