#include "services/ps/update_timer.h"

#include <algorithm>
#include <bit>
#include <chrono>

namespace muster {
namespace {

using kernels::OutgoingStores;

int64_t NowNanoseconds() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

float StoresChoice::Way::fastest() const { return *std::ranges::min_element(took); }

OutgoingStores StoresChoice::faster() const {
  return ways_[1].fastest() < ways_[0].fastest() ? OutgoingStores::kUnfetched
                                                 : OutgoingStores::kDirect;
}

OutgoingStores StoresChoice::Try() {
  const OutgoingStores now = faster();
  if (--until_trial_ > 0) return now;
  // A random gap: with a fixed one the trials could always hit the same chunks, because each step
  // updates the chunks in about the same order.
  until_trial_ = 1 + static_cast<int>(random_() % kTrialGapMax);
  return now == OutgoingStores::kDirect ? OutgoingStores::kUnfetched : OutgoingStores::kDirect;
}

void StoresChoice::Took(OutgoingStores stores, float nanoseconds_per_element) {
  Way& way = ways_[static_cast<int>(stores)];
  way.took[way.next] = nanoseconds_per_element;
  way.next = (way.next + 1) % kRemembered;
}

StoresChoice& UpdateTimer::ChoiceFor(int64_t elements) {
  return choices_[std::bit_width(static_cast<uint64_t>(elements))];
}

OutgoingStores UpdateTimer::Begin(int64_t elements) {
  elements_ = elements;
  stands_for_ = 1;
  if (elements < kTimedElements) {
    stands_for_ = --until_sample_ == 0 ? gap_ : 0;
    if (stands_for_ > 0) until_sample_ = gap_ = 1 + static_cast<int>(random_() % kSampleGapMax);
  }
  stores_ = OutgoingStores::kDirect;
  if (values_are_read_in_place_ && elements >= kUnfetchedElementsMin) {
    StoresChoice& choice = ChoiceFor(elements);
    stores_ = stands_for_ > 0 ? choice.Try() : choice.faster();
  }
  if (stands_for_ > 0) begin_ = NowNanoseconds();
  return stores_;
}

UpdateTimer::Sample UpdateTimer::End() {
  if (stands_for_ == 0) return {};
  const int64_t nanoseconds = NowNanoseconds() - begin_;
  ChoiceFor(elements_).Took(stores_,
                            static_cast<float>(nanoseconds) / static_cast<float>(elements_));
  return {.updates = stands_for_, .nanoseconds = nanoseconds};
}

}  // namespace muster
