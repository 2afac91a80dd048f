#include "services/coordinator/diagnostics/member_logs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster {

void MemberLogs::Ask(const v1::ReadMemberLogRequest& request, absl::Time now, Answer answer) {
  const auto members = fleet_->members();
  const auto known = members.find(request.name());
  if (known == members.end() || !known->second.attached) {
    return answer(WithReason(
        absl::NotFoundError(absl::StrCat("no member '", request.name(),
                                         "' is attached; muster members lists those that are")),
        "MEMBER_NOT_FOUND"));
  }
  v1::Directive directive;
  v1::TellLog& question = *directive.mutable_tell_log();
  if (request.has_offset()) question.set_offset(request.offset());
  const auto most = static_cast<int32_t>(limits::kMemberLogBytesMax);
  question.set_bytes_max(request.bytes_max() <= 0 ? most : std::min(request.bytes_max(), most));
  {
    absl::MutexLock lock(&mu_);
    if (std::ssize(questions_) < limits::kMemberLogCallsMax) {
      question.set_request(++last_);
      questions_[last_] = {.member = request.name(),
                           .incarnation = known->second.hello.incarnation(),
                           .asked = now,
                           .answer = std::exchange(answer, nullptr)};
    }
  }
  if (answer != nullptr) {
    return answer(
        WithReason(absl::ResourceExhaustedError(absl::StrCat(
                       limits::kMemberLogCallsMax, " logs are being read (the limit): try again")),
                   "TOO_MANY_CALLS"));
  }
  fleet_->Send(request.name(), {std::move(directive), nullptr});
}

void MemberLogs::Take(const std::string& member, const v1::MemberReport& report) {
  for (const v1::LogPart& part : report.logs()) {
    Question question;
    {
      absl::MutexLock lock(&mu_);
      const auto asked = questions_.find(part.request());
      if (asked == questions_.end() || asked->second.member != member) continue;
      question = std::move(asked->second);
      questions_.erase(asked);
    }
    v1::ReadMemberLogResponse response;
    response.set_offset(part.offset());
    response.set_text(part.text());
    response.set_next_offset(part.next_offset());
    response.set_incarnation(question.incarnation);
    question.answer(std::move(response));
  }
}

void MemberLogs::Expire(absl::Time now) {
  std::vector<Question> late;
  {
    absl::MutexLock lock(&mu_);
    for (auto it = questions_.begin(); it != questions_.end();) {
      if (now - it->second.asked < limits::kMemberLogWaitMax) {
        ++it;
      } else {
        late.push_back(std::move(it->second));
        it = questions_.erase(it);
      }
    }
  }
  for (Question& question : late) {
    question.answer(WithReason(
        absl::UnavailableError(absl::StrCat(
            question.member, " has not sent its log for ",
            absl::FormatDuration(limits::kMemberLogWaitMax),
            ": it is busy, about to be lost, or runs an older Muster without this request; "
            "its own log is where it was started")),
        "MEMBER_SILENT"));
  }
}

}  // namespace muster
