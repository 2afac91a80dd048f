#include "services/coordinator/records/job_timeline.h"

#include <algorithm>
#include <utility>

namespace muster {

std::optional<JobTimeline::Span> JobTimeline::SpanAt(const Moment& moment) const {
  switch (moment.state) {
    case v1::QUEUED:
      return Span::kQueue;
    case v1::RECOVERING:
      // A job that waits for members stays stopped, even if something else delays its next attempt.
      return moment.stopped || span_ == Span::kPlan ? Span::kPlan : Span::kHalt;
    case v1::PREPARING:
      if (recovering_since_) return Span::kPrepare;
      return std::nullopt;
    case v1::RUNNING:
      if (recovering_since_ && moment.step <= step_to_pass_) return Span::kFirstStep;
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

void JobTimeline::Look(const Moment& moment, absl::Time now,
                       absl::FunctionRef<void(Span span, absl::Duration took)> ended) {
  if (moment.state == v1::RECOVERING && !recovering_since_) recovering_since_ = now;
  furthest_step_ = std::max(furthest_step_, moment.step);
  // Members that halt still report steps from before the loss. Those are not new steps.
  const bool stands = moment.state != v1::RUNNING || span_ == Span::kPrepare;
  if (recovering_since_ && stands) step_to_pass_ = furthest_step_;
  const std::optional<Span> next = SpanAt(moment);
  if (next != span_) {
    const std::optional<Span> before = std::exchange(span_, next);
    const absl::Time began = std::exchange(since_, now);
    const bool goes_on = moment.state == v1::PREPARING || moment.state == v1::RUNNING ||
                         (next && before && *next > *before);
    if (before && goes_on) ended(*before, now - began);
  }
  if (!recovering_since_ || span_) return;
  if (moment.state == v1::RUNNING) ended(Span::kRecovery, now - *recovering_since_);
  recovering_since_.reset();
}

}  // namespace muster
