#include "services/coordinator/diagnostics/member_logs.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "services/coordinator/testing/made_up_jobs.h"

namespace muster::member_logs_test {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

class MemberLogsTest : public ::testing::Test {
 protected:
  MemberLogsTest() {
    auto arrival = fleet_.Attach(
        HelloOf("worker-0"), std::make_shared<StreamWaker>(std::function<void()>([] {})), kStart);
    EXPECT_TRUE(arrival.ok()) << arrival.status();
    stream_ = arrival->attachment;
    stream_->TakeDirectives();  // discards the welcome
  }

  static v1::ReadMemberLogRequest Of(const std::string& member) {
    v1::ReadMemberLogRequest request;
    request.set_name(member);
    return request;
  }
  void Ask(const v1::ReadMemberLogRequest& request) {
    logs_.Ask(request, kStart, [this](auto answer) { answer_ = std::move(answer); });
  }
  static v1::MemberReport Told(uint64_t request, const std::string& text) {
    v1::MemberReport report;
    v1::LogPart& part = *report.add_logs();
    part.set_request(request);
    part.set_offset(40);
    part.set_text(text);
    part.set_next_offset(44);
    return report;
  }

  Fleet fleet_{{.cluster = "c-1", .term = 1, .lease = absl::Seconds(5)}};
  std::shared_ptr<Attachment> stream_;
  MemberLogs logs_{&fleet_};
  std::optional<absl::StatusOr<v1::ReadMemberLogResponse>> answer_;
};

TEST_F(MemberLogsTest, AsksTheMemberAndReturnsItsAnswer) {
  v1::ReadMemberLogRequest request = Of("worker-0");
  request.set_offset(40);
  request.set_bytes_max(1 << 30);
  Ask(request);

  const auto directives = stream_->TakeDirectives();
  ASSERT_EQ(directives.size(), 1);
  const v1::TellLog& asked = directives[0].directive.tell_log();
  EXPECT_EQ(asked.offset(), 40);
  EXPECT_EQ(asked.bytes_max(), limits::kMemberLogBytesMax) << "whatever the caller wants";
  EXPECT_FALSE(answer_.has_value());
  logs_.Take("worker-0", Told(asked.request(), "one\n"));
  ASSERT_TRUE(answer_.has_value());
  ASSERT_TRUE(answer_->ok()) << answer_->status();
  EXPECT_EQ((*answer_)->text(), "one\n");
  EXPECT_EQ((*answer_)->offset(), 40);
  EXPECT_EQ((*answer_)->next_offset(), 44);
  EXPECT_EQ((*answer_)->incarnation(), "worker-0-1");
}

TEST_F(MemberLogsTest, AMemberCannotAnswerForAnother) {
  Ask(Of("worker-0"));
  const uint64_t request = stream_->TakeDirectives()[0].directive.tell_log().request();

  logs_.Take("worker-1", Told(request, "lies\n"));
  logs_.Take("worker-0", Told(request + 1, "of another question\n"));
  EXPECT_FALSE(answer_.has_value());
  logs_.Take("worker-0", Told(request, "truth\n"));
  ASSERT_TRUE(answer_.has_value() && answer_->ok());
  EXPECT_EQ((*answer_)->text(), "truth\n");
  answer_.reset();
  logs_.Take("worker-0", Told(request, "twice\n"));
  EXPECT_FALSE(answer_.has_value());
}

TEST_F(MemberLogsTest, NamesAMemberThatIsMissingOrSilent) {
  Ask(Of("worker-9"));
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ(ReasonOf(answer_->status()), "MEMBER_NOT_FOUND");

  answer_.reset();
  Ask(Of("worker-0"));
  logs_.Expire(kStart + limits::kMemberLogWaitMax - absl::Milliseconds(1));
  EXPECT_FALSE(answer_.has_value());
  logs_.Expire(kStart + limits::kMemberLogWaitMax);
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ(ReasonOf(answer_->status()), "MEMBER_SILENT");
  EXPECT_TRUE(absl::IsUnavailable(answer_->status()));
}

TEST_F(MemberLogsTest, LimitsConcurrentQuestions) {
  for (int i = 0; i < limits::kMemberLogCallsMax; ++i) Ask(Of("worker-0"));
  EXPECT_FALSE(answer_.has_value());
  Ask(Of("worker-0"));
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ(ReasonOf(answer_->status()), "TOO_MANY_CALLS");
}

}  // namespace
}  // namespace muster::member_logs_test
