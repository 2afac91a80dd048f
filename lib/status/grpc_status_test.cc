#include "lib/status/grpc_status.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "lib/job/resource_name.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "proto/third_party/google/rpc/error_details.pb.h"

namespace muster::grpc_status_test {
namespace {

TEST(GrpcStatusTest, CodeMessageReasonAndFaultsSurviveTheWire) {
  const std::vector<FieldFault> faults = {{"resources.ps", "must be at least 1 (is 0)"},
                                          {"name", "is required"}};

  absl::Status received = FromGrpc(ToGrpc(FaultsToStatus(faults)));

  EXPECT_EQ(received.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(received.message(), "resources.ps: must be at least 1 (is 0)\nname: is required");
  EXPECT_EQ(ReasonOf(received), "INVALID_SPEC");
  EXPECT_EQ(FaultsOf(received), faults);
}

TEST(GrpcStatusTest, FaultsOfARequestWithoutASpecHaveTheirOwnReason) {
  const std::vector<FieldFault> faults = {{"page_size", "must not be negative (is -1)"}};

  absl::Status received = FromGrpc(ToGrpc(FaultsToStatus(faults, "INVALID_REQUEST")));

  EXPECT_EQ(ReasonOf(received), "INVALID_REQUEST");
  EXPECT_EQ(FaultsOf(received), faults);
}

TEST(GrpcStatusTest, AttachedReasonBecomesErrorInfo) {
  absl::Status received =
      FromGrpc(ToGrpc(WithReason(absl::NotFoundError("no job 'x'"), "JOB_NOT_FOUND")));

  EXPECT_EQ(ReasonOf(received), "JOB_NOT_FOUND");
  EXPECT_TRUE(FaultsOf(received).empty());
  EXPECT_TRUE(FromGrpc(ToGrpc(absl::OkStatus())).ok());
}

// Returns the seconds of the RetryInfo in the details, or -1 if there is none.
int64_t RetrySeconds(const absl::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(ToGrpc(status).error_details()));
  for (const auto& detail : details.details()) {
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&retry)) return retry.retry_delay().seconds();
  }
  return -1;
}

TEST(GrpcStatusTest, RetryableErrorsSayWhenToRetry) {
  EXPECT_EQ(RetrySeconds(absl::UnavailableError("away")), 1);
  EXPECT_EQ(RetrySeconds(WithReason(absl::ResourceExhaustedError("busy"), "TOO_MANY_CALLS")), 1);
  EXPECT_EQ(RetrySeconds(WithReason(absl::ResourceExhaustedError("full"), "STORE_FULL")), 10);
  EXPECT_EQ(RetrySeconds(absl::InvalidArgumentError("wrong")), -1);
  EXPECT_EQ(ReasonOf(FromGrpc(ToGrpc(absl::UnavailableError("away")))), "UNAVAILABLE");
}

// Half a character is left when a message is cut. Unless it is removed, the other side cannot even
// read the reason.
TEST(GrpcStatusTest, CutCharacterLosesNeitherReasonNorFaults) {
  const absl::Status received =
      FromGrpc(ToGrpc(FaultsToStatus({{"name", "is \"\xe2\x82"}}, "INVALID_SPEC")));

  EXPECT_EQ(ReasonOf(received), "INVALID_SPEC");
  EXPECT_EQ(FaultsOf(received), (std::vector<FieldFault>{{"name", "is \"??"}}));
}

// A client accepts 8 KiB of metadata, and closes the connection if it is sent more.
TEST(GrpcStatusTest, CutsLongErrorsToTheClientsLimit) {
  std::vector<FieldFault> many;
  for (int i = 0; i < 500; ++i) many.push_back({"field", "must be another (is 'that')"});
  const std::string letters(70'000, 'x'), others = [] {
    std::string text;
    while (text.size() < 70'000) text += "\xe2\x82\xac";
    return text;
  }();
  for (const absl::Status& status :
       {WithReason(absl::NotFoundError("no job '" + letters + "'"), "JOB_NOT_FOUND"),
        WithReason(absl::NotFoundError(others), "JOB_NOT_FOUND"), FaultsToStatus(many),
        FaultsToStatus({{letters, letters}}), FaultsToStatus({{"name", others}})}) {
    const grpc::Status sent = ToGrpc(status);
    size_t encoded = 0;
    for (const char c : sent.error_message()) encoded += c >= ' ' && c <= '~' && c != '%' ? 1 : 3;
    EXPECT_LE(encoded + sent.error_details().size() * 4 / 3, 7 << 10);
    const absl::Status received = FromGrpc(sent);
    EXPECT_EQ(received.code(), status.code());
    EXPECT_EQ(ReasonOf(received), ReasonOf(status));
    EXPECT_TRUE(absl::StrContains(received.message(), " bytes more)"));
  }
  EXPECT_GT(FaultsOf(FromGrpc(ToGrpc(FaultsToStatus(many)))).size(), 20);
}

TEST(GrpcStatusTest, GarbageInDetailsIsIgnored) {
  absl::Status received =
      FromGrpc(grpc::Status(grpc::StatusCode::ABORTED, "m", std::string("\xff\xfe\x01", 3)));
  EXPECT_EQ(received.code(), absl::StatusCode::kAborted);
}

TEST(ResourceNameTest, CheckpointIdsHaveTheFormThatUsersType) {
  EXPECT_EQ(CheckpointId("a-1", 20), "a-1@20");
  EXPECT_EQ(CheckpointIdOf(CheckpointName("a-1", 20)), "a-1@20");
  EXPECT_EQ(CheckpointIdOf("/mnt/old/step-00000020"), "/mnt/old/step-00000020");
  EXPECT_EQ(CheckpointIdOf(""), "");
}

TEST(ResourceNameTest, CheckpointRefsAreReadInEveryForm) {
  EXPECT_EQ(ParseCheckpointRef("jobs/a-1/checkpoints/20"), (CheckpointRef{"a-1", 20}));
  EXPECT_EQ(ParseCheckpointRef("a-1@20"), (CheckpointRef{"a-1", 20}));
  EXPECT_EQ(ParseCheckpointRef("a-1"), (CheckpointRef{"a-1", std::nullopt}));
  EXPECT_EQ(ParseCheckpointRef("jobs/a-1"), (CheckpointRef{"a-1", std::nullopt}));
  for (const char* bad : {"", "a@b", "a@-1", "../x@1", "jobs/a/checkpoints/1/2", "A-1", "a@1@2",
                          "jobs/a/checkpoints/99999999999999999999"}) {
    EXPECT_EQ(ParseCheckpointRef(bad), std::nullopt) << bad;
  }
}

TEST(ResourceNameTest, NamesFitKubernetesLabels) {
  EXPECT_TRUE(IsValidName("char-gpt"));
  EXPECT_TRUE(IsValidName("7"));
  for (const char* bad : {"", "-a", "a-", "A", "a_b", "a.b", "a/b"}) EXPECT_FALSE(IsValidName(bad));
  EXPECT_FALSE(IsValidName(std::string(41, 'a')));
}

}  // namespace
}  // namespace muster::grpc_status_test
