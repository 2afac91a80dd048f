// Asks members for parts of their logs. The question goes down the member's stream, and the answer
// comes with its next report.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/membership/fleet.h"

namespace muster {

// No call blocks. The answer callback is called once, with the log or the error, without any lock.
// It is called on the thread of Ask(), of the member's report or of Expire(). Thread-safe.
class MemberLogs {
 public:
  explicit MemberLogs(Fleet* fleet) : fleet_(fleet) {}  // must outlive this

  using Answer = std::function<void(absl::StatusOr<v1::ReadMemberLogResponse>)>;
  // Answers NOT_FOUND (reason "MEMBER_NOT_FOUND") if the member is not attached; RESOURCE_EXHAUSTED
  // ("TOO_MANY_CALLS") beyond limits::kMemberLogCallsMax concurrent questions; or UNAVAILABLE
  // ("MEMBER_SILENT") without an answer within limits::kMemberLogWaitMax.
  void Ask(const v1::ReadMemberLogRequest& request, absl::Time now, Answer answer)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Takes the answers in a member's report. Ignores answers to questions that it was not asked.
  void Take(const std::string& member, const v1::MemberReport& report) ABSL_LOCKS_EXCLUDED(mu_);

  // Fails the questions that are too old. Called at every tick.
  void Expire(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Question {
    std::string member;
    std::string incarnation;
    absl::Time asked;
    Answer answer;
  };

  Fleet* const fleet_;
  absl::Mutex mu_;
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  absl::btree_map<uint64_t, Question> questions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
