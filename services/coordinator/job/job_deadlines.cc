#include "services/coordinator/job/job_deadlines.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/job/spec_duration.h"
#include "services/coordinator/common/job_phase.h"
#include "services/coordinator/common/proto_time.h"

namespace muster {
namespace {

absl::Duration Since(const google::protobuf::Timestamp& begin, absl::Time now) {
  return std::max(absl::ZeroDuration(), now - FromProto(begin));
}

std::string WholeSeconds(absl::Duration time) {
  return absl::FormatDuration(absl::Trunc(time, absl::Seconds(1)));
}

v1::StopCause Cause(absl::string_view reason, const std::string& message) {
  v1::StopCause cause;
  cause.set_reason(std::string(reason));
  cause.set_message(message);
  return cause;
}

bool Waits(v1::JobState state) { return state == v1::QUEUED || state == v1::RECOVERING; }

}  // namespace

// A recovery counts as part of the run. A job that prepares for the first time, or after a
// suspension, does not run yet.
void JobDeadlines::Move(v1::Job& record, v1::JobState to, absl::Time now) {
  if (to == v1::RUNNING && !record.has_active_since()) {
    *record.mutable_active_since() = ToProto(now);
  }
  const bool goes_on = to == v1::PREPARING || to == v1::RUNNING || to == v1::RECOVERING;
  if (!goes_on && record.has_active_since()) {
    *record.mutable_active_before() = SpecDuration(ActiveTime(record, now));
    record.clear_active_since();
  }
  if (!Waits(to)) {
    record.clear_waits_since();
  } else if (record.state() != to) {
    *record.mutable_waits_since() = ToProto(now);
  }
}

void JobDeadlines::StoodStill(v1::Job& record, absl::Duration time, absl::Time now) {
  const auto shift = [&](google::protobuf::Timestamp& since) {
    const absl::Time begin = FromProto(since);
    since = ToProto(std::max(begin, std::min(begin + time, now)));
  };
  if (Waits(record.state()) && !record.has_waits_since()) {
    *record.mutable_waits_since() = record.create_time();
  }
  if (record.has_active_since()) shift(*record.mutable_active_since());
  if (record.has_waits_since()) shift(*record.mutable_waits_since());
}

absl::Duration JobDeadlines::ActiveTime(const v1::Job& record, absl::Time now) {
  const absl::Duration before = SpecDuration(record.active_before());
  return record.has_active_since() ? before + Since(record.active_since(), now) : before;
}

bool JobDeadlines::IsPastDeadline(const v1::Job& record, absl::Time now) {
  return record.has_active_since() && record.spec().has_active_deadline() &&
         ActiveTime(record, now) >= SpecDuration(record.spec().active_deadline());
}

bool JobDeadlines::IsLongPastDeadline(const v1::Job& record, absl::Time now) {
  return IsPastDeadline(record, now) &&
         ActiveTime(record, now) >= SpecDuration(record.spec().active_deadline()) + kStopPatience;
}

// A job without waits_since has waited since its creation.
absl::Duration JobDeadlines::WaitingTime(const v1::Job& record, absl::Time now) {
  return Since(record.has_waits_since() ? record.waits_since() : record.create_time(), now);
}

bool JobDeadlines::WaitsTooLong(const v1::Job& record, absl::Time now) {
  return Waits(record.state()) && record.spec().has_start_timeout() &&
         WaitingTime(record, now) >= SpecDuration(record.spec().start_timeout());
}

v1::StopCause JobDeadlines::PastDeadline(const v1::Job& record, absl::Time now) {
  return Cause(kActiveDeadline,
               absl::StrCat("it has been active for ", WholeSeconds(ActiveTime(record, now)),
                            " (active_deadline: ",
                            absl::FormatDuration(SpecDuration(record.spec().active_deadline())),
                            ") and has come to step ", record.progress().step(), " of ",
                            record.progress().total_steps()));
}

v1::StopCause JobDeadlines::WaitedTooLong(const v1::Job& record, const std::string& lacks,
                                          absl::Time now) {
  return Cause(kStartTimeout,
               absl::StrCat("it has waited for ", WholeSeconds(WaitingTime(record, now)),
                            " (start_timeout: ",
                            absl::FormatDuration(SpecDuration(record.spec().start_timeout())),
                            ") for ", lacks));
}

}  // namespace muster
