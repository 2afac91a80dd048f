#include "lib/collective/polled_wait.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {

absl::Status PolledWait::Await(absl::FunctionRef<absl::StatusOr<bool>()> finished,
                               absl::FunctionRef<absl::Status()> timed_out) const {
  const absl::Duration deadline = options_.now() + options_.timeout;
  for (;;) {
    const absl::StatusOr<bool> is_finished = finished();
    if (!is_finished.ok()) return is_finished.status();
    if (*is_finished) return absl::OkStatus();
    if (options_.now() >= deadline) return timed_out();
    options_.sleep(options_.interval);
  }
}

absl::Status Drain(absl::FunctionRef<void()> abandon, const std::vector<PolledStream>& streams,
                   const PolledWait& wait) {
  abandon();
  absl::Status failure;
  std::vector<const PolledStream*> busy;
  for (const PolledStream& stream : streams) busy.push_back(&stream);
  const auto has_ended = [&failure](const PolledStream* stream) {
    const absl::StatusOr<bool> finished = stream->finished();
    failure.Update(finished.status());
    return !finished.ok() || *finished;
  };
  const auto all_have_ended = [&]() -> absl::StatusOr<bool> {
    std::erase_if(busy, has_ended);
    return busy.empty();
  };
  const auto timed_out = [&]() -> absl::Status {
    const auto name = [](std::string* out, const PolledStream* stream) {
      out->append(stream->name);
    };
    return absl::DeadlineExceededError(absl::StrCat(absl::StrJoin(busy, ", ", name),
                                                    " did not end within ",
                                                    absl::FormatDuration(wait.timeout())));
  };
  const absl::Status waited = wait.Await(all_have_ended, timed_out);
  return waited.ok() ? failure : waited;
}

}  // namespace muster
