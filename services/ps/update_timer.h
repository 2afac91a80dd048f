// Times updates, and finds out which way of storing their values is fastest.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <random>

#include "kernels/optimizer/optimizer.h"

namespace muster {

// Remembers which of two ways to store was faster lately. The distance between the processors of a
// ps and of the workers on its host cannot be looked up, and schedulers change it.
class StoresChoice {
 public:
  // Returns the faster way. A way that was timed fewer than kRemembered times counts as faster; if
  // that holds for both, the direct one does.
  kernels::OutgoingStores faster() const;
  // Returns the faster way or, in about one of 16 calls, the other one, which may have become
  // faster.
  kernels::OutgoingStores Try();
  void Took(kernels::OutgoingStores stores, float nanoseconds_per_element);

 private:
  static constexpr int kRemembered = 4;  // so that one interrupted update does not matter
  static constexpr int kTrialGapMax = 31;

  struct Way {
    std::array<float, kRemembered> took = {};
    int next = 0;

    float fastest() const;
  };
  std::array<Way, 2> ways_;
  int until_trial_ = kTrialGapMax;
  std::minstd_rand random_;
};

// Thread-compatible.
class UpdateTimer {
 public:
  // Workers read the values in place from now on, see kernels::OutgoingStores.
  void set_values_are_read_in_place() { values_are_read_in_place_ = true; }

  // Begins an update of `elements` elements. Returns how its values must be stored.
  kernels::OutgoingStores Begin(int64_t elements);

  struct Sample {
    int updates = 0;  // number of updates that it stands for; 0: not timed
    int64_t nanoseconds = 0;
  };
  Sample End();

 private:
  // Updates of at least this many elements are all timed, of smaller ones only a sample. Reading
  // the clock twice takes a tenth of the time of a small chunk's whole round trip.
  static constexpr int64_t kTimedElements = 16 << 10;
  static constexpr int kSampleGapMax = 31;
  static constexpr int64_t kUnfetchedElementsMin = 1024;

  StoresChoice& ChoiceFor(int64_t elements);

  bool values_are_read_in_place_ = false;
  // by the bit width of the number of elements
  std::array<StoresChoice, std::numeric_limits<int64_t>::digits + 1> choices_;
  int gap_ = 1;  // updates from one sample to the next
  int until_sample_ = 1;
  std::minstd_rand random_;
  // The update under way.
  int64_t elements_ = 0;
  kernels::OutgoingStores stores_ = kernels::OutgoingStores::kDirect;
  int stands_for_ = 0;
  int64_t begin_ = 0;  // nanoseconds
};

}  // namespace muster
