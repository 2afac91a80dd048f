// A set of ranks, in the format in which shards exchange it.
#pragma once

#include <bit>
#include <cstdint>

#include "absl/types/span.h"
#include "lib/plan/numbers.h"

namespace muster {

// Rank r is bit r % 64 of word r / 64. Does not own the words.
class RankSet {
 public:
  static constexpr int WordsFor(int ranks) { return (ranks + 63) / 64; }

  explicit RankSet(absl::Span<const uint64_t> words) : words_(words) {}

  bool Has(Rank rank) const { return words_[ToInt(rank) / 64] >> (ToInt(rank) % 64) & 1; }
  int size() const {
    int count = 0;
    for (const uint64_t word : words_) count += std::popcount(word);
    return count;
  }

  static void Add(absl::Span<uint64_t> words, Rank rank) {
    words[ToInt(rank) / 64] |= uint64_t{1} << (ToInt(rank) % 64);
  }

 private:
  absl::Span<const uint64_t> words_;
};

}  // namespace muster
