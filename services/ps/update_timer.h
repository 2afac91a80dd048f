// How long updates take, and by it how their values are stored fastest.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <random>

#include "kernels/optimizer/optimizer.h"

namespace muster {

// Which of two ways was faster lately. How far the processors of a ps and of the workers on its
// host are from each other is nowhere to be read, and schedulers change it.
class StoresChoice {
 public:
  // The faster one; one that was never tried is.
  kernels::OutgoingStores faster() const;
  // That or, in every 16th update or so, the other one: it may have become the faster.
  kernels::OutgoingStores Try();
  void Took(kernels::OutgoingStores stores, float nanoseconds_per_element);

 private:
  static constexpr int kRemembered = 4;  // an interrupted update among these does not matter
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
  // From now on workers do: see kernels::OutgoingStores.
  void set_values_are_read_in_place() { values_are_read_in_place_ = true; }

  // An update of so many elements begins; values are to be stored so.
  kernels::OutgoingStores Begin(int64_t elements);

  struct Sample {
    int updates = 0;  // that it stands for; 0: this update was not timed
    int64_t nanoseconds = 0;
  };
  Sample End();

 private:
  // Two looks at the clock take a tenth of the time that a small chunk's whole round trip does: of
  // updates of fewer elements, a sample is timed.
  static constexpr int64_t kTimedElements = 16 << 10;
  static constexpr int kSampleGapMax = 31;
  static constexpr int64_t kUnfetchedElementsMin = 1024;

  StoresChoice& ChoiceFor(int64_t elements);

  bool values_are_read_in_place_ = false;
  std::array<StoresChoice, std::numeric_limits<int64_t>::digits + 1> choices_;  // by width of size
  int gap_ = 1;  // from sample to sample
  int until_sample_ = 1;
  std::minstd_rand random_;
  // Of the update under way.
  int64_t elements_ = 0;
  kernels::OutgoingStores stores_ = kernels::OutgoingStores::kDirect;
  int stands_for_ = 0;
  int64_t begin_ = 0;  // nanoseconds
};

}  // namespace muster
