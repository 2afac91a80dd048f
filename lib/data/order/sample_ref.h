// Names a sample of a data set in one of its epochs.
#pragma once

#include <compare>
#include <cstdint>

namespace muster {

struct SampleRef {
  int64_t epoch = 0;
  int64_t sample = 0;

  friend bool operator==(const SampleRef&, const SampleRef&) = default;
  // clang-tidy 14 takes the zero of the comparison for a pointer.
  friend auto operator<=>(const SampleRef&,
                          const SampleRef&) = default;  // NOLINT(modernize-use-nullptr)
};

}  // namespace muster
