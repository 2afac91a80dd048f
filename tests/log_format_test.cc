// With --log_format=json, every line of a daemon's log is a JSON object that names its subjects.
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/training_cluster.h"

namespace muster::log_format_test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;
using Json = nlohmann::json;

constexpr char kJob[] = R"(
name: logged
model: {zoo: {name: linear}}
data: {linear: {slope: 3, intercept: 1, samples: 64}, batch_size: 8}
training: {steps: 20, optimizer: {sgd: {learning_rate: 0.1}}}
)";

class LogFormatTest : public ::testing::Test {
 protected:
  // Returns the lines of a member's log. Fails the test if a line is not an object with the common
  // fields.
  std::vector<Json> Lines(const std::string& member) {
    std::vector<Json> lines;
    std::ifstream file(cluster_.members().log_path(member));
    for (std::string line; std::getline(file, line);) {
      const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      EXPECT_TRUE(object.is_object()) << member << ": " << line;
      if (!object.is_object()) continue;
      EXPECT_THAT(object.value("time", ""), MatchesRegex("20[0-9-]+T[0-9:]+[.][0-9]+Z")) << line;
      EXPECT_THAT(object.value("severity", ""), MatchesRegex("INFO|WARNING|ERROR")) << line;
      EXPECT_THAT(object.value("source", ""), MatchesRegex("(lib|services)/.*[.](cc|h):[0-9]+"));
      EXPECT_NE(object.value("message", ""), "") << line;
      lines.push_back(object);
    }
    EXPECT_FALSE(lines.empty()) << member;
    return lines;
  }
  // Returns the first line whose message contains this text. Returns null, and fails the test, if
  // there is none.
  static Json Find(const std::vector<Json>& lines, const std::string& part) {
    for (const Json& line : lines) {
      if (absl::StrContains(line.value("message", ""), part)) return line;
    }
    ADD_FAILURE() << "no line with '" << part << "'";
    return Json::object();
  }

  TrainingCluster cluster_{{.ps = 1,
                            .workers = 1,
                            .ps_threads = 1,
                            .coordinator_flags = {"--log_format=json"},
                            .ps_flags = {"--log_format=json"},
                            .worker_flags = {"--log_format=json"}}};
};

TEST_F(LogFormatTest, LinesOfMembersNameTheirMemberJobAndGeneration) {
  const std::string job = cluster_.Run(kJob);

  const std::vector<Json> worker = Lines("worker-0"), ps = Lines("ps-0");
  for (const Json& line : worker) EXPECT_EQ(line.value("member", ""), "worker-0") << line;
  for (const Json& line : ps) EXPECT_EQ(line.value("member", ""), "ps-0") << line;
  // These lines come from three kinds of threads: the job's, the one that carries out directives,
  // and the gradient exchange's.
  for (const Json& line : {Find(worker, "MEMBER_RUNNING"), Find(worker, ": ready after"),
                           Find(ps, "preparing"), Find(worker, "exchanges")}) {
    EXPECT_EQ(line.value("job", ""), job) << line;
    EXPECT_EQ(line.value("generation", 0), 1) << line;
  }
  EXPECT_FALSE(Find(worker, "attached to the coordinator").contains("job"));
}

TEST_F(LogFormatTest, LinesOfTheCoordinatorNameTheJobOrTheMember) {
  const std::string job = cluster_.Run(kJob);

  const std::vector<Json> lines = Lines("coordinator");
  const Json ended = Find(lines, " SUCCEEDED ");
  EXPECT_EQ(ended.value("job", ""), job) << ended;
  EXPECT_EQ(ended.value("generation", 0), 1) << ended;
  EXPECT_FALSE(ended.contains("member")) << ended;
  EXPECT_EQ(Find(lines, "ps-0 attached").value("member", ""), "ps-0");
}

TEST_F(LogFormatTest, LinesOfTheAuditLogHaveFieldsOfTheirOwn) {
  const std::string job = cluster_.Run(kJob);

  const Json audit = Find(Lines("coordinator"), "audit: ");
  EXPECT_EQ(audit.value("method", ""), "CreateJob") << audit;
  EXPECT_EQ(audit.value("resource", ""), "jobs/" + job) << audit;
  EXPECT_EQ(audit.value("caller", ""), "anonymous") << audit;
  EXPECT_THAT(audit.value("address", ""), MatchesRegex("127.0.0.1:[0-9]+")) << audit;
  EXPECT_EQ(audit.value("result", ""), "OK") << audit;
}

TEST_F(LogFormatTest, PeopleStillReadText) {
  const std::string job = cluster_.Run(kJob);

  v1::ReadMemberLogRequest request;
  request.set_name("worker-0");
  grpc::ClientContext context;
  v1::ReadMemberLogResponse response;
  const grpc::Status status = cluster_.fleet().ReadMemberLog(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(response.text(), StartsWith("I20"));
  EXPECT_THAT(response.text(),
              HasSubstr(absl::StrCat("] ", job, " generation 1: MEMBER_RUNNING\n")));
}

}  // namespace
}  // namespace muster::log_format_test
