#include "cli/text/event_fold.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::cli {
namespace {

constexpr char kCheckpoint[] = "CHECKPOINT_COMMITTED";

}  // namespace

std::vector<v1::JobEvent> EventFold::Take(absl::Span<const v1::JobEvent> events) {
  std::vector<v1::JobEvent> shown;
  for (const v1::JobEvent& event : events) {
    const auto run = runs_.find(event.job());
    if (event.reason() != kCheckpoint) {
      if (run != runs_.end()) shown.push_back(Shown(std::move(runs_.extract(run).mapped())));
      shown.push_back(event);
    } else if (run == runs_.end()) {
      runs_[event.job()] = {.last = event};
    } else {
      run->second = {.last = event, .before = run->second.before + 1};
    }
  }
  return shown;
}

std::vector<v1::JobEvent> EventFold::Rest() {
  std::vector<v1::JobEvent> shown;
  for (auto& [job, run] : std::exchange(runs_, {})) shown.push_back(Shown(std::move(run)));
  return shown;
}

v1::JobEvent EventFold::Shown(Run run) {
  if (run.before > 0) {
    absl::StrAppend(run.last.mutable_message(), "; ", run.before,
                    run.before == 1 ? " checkpoint" : " checkpoints", " before it");
  }
  return std::move(run.last);
}

std::vector<v1::JobEvent> Folded(absl::Span<const v1::JobEvent> events) {
  EventFold fold;
  std::vector<v1::JobEvent> shown = fold.Take(events);
  std::ranges::move(fold.Rest(), std::back_inserter(shown));
  SortByTime(shown);
  return shown;
}

void SortByTime(std::vector<v1::JobEvent>& events) {
  std::ranges::stable_sort(events, {}, [](const v1::JobEvent& event) {
    return std::tuple(event.time().seconds(), event.time().nanos());
  });
}

}  // namespace muster::cli
