#include "lib/log/json_log.h"

#include <glog/logging.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <signal.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"

namespace muster::json_log_test {
namespace {

using ::google::protobuf::Struct;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::KilledBySignal;
using ::testing::Not;

constexpr timespec kTime{.tv_sec = 1'795'918'327, .tv_nsec = 399'756'123};

// Parses a line as a JSON object; fails the test if it is not one.
Struct Parse(const std::string& line) {
  Struct object;
  const auto parsed = google::protobuf::util::JsonStringToMessage(line, &object);
  EXPECT_TRUE(parsed.ok()) << parsed.ToString() << ": " << line;
  return object;
}
std::string Field(const Struct& object, const std::string& name) {
  const auto found = object.fields().find(name);
  return found == object.fields().end() ? "(none)" : found->second.string_value();
}

TEST(JsonLogTest, ALineHasTheFieldsThatApply) {
  EXPECT_EQ(ToJson({.time = kTime,
                    .severity = "INFO",
                    .file = "services/ps/main.cc",
                    .line = 7,
                    .fields = {.member = "ps-1", .job = "net-7", .generation = 3},
                    .message = "halted"}),
            R"({"time": "2026-11-29T02:12:07.399756Z", "severity": "INFO", )"
            R"("source": "services/ps/main.cc:7", "member": "ps-1", "job": "net-7", )"
            R"("generation": 3, "message": "halted"})"
            "\n");
  EXPECT_EQ(ToJson({.time = {}, .severity = "ERROR", .file = "a.cc", .line = 1}),
            R"({"time": "1970-01-01T00:00:00.000000Z", "severity": "ERROR", )"
            R"("source": "a.cc:1", "message": ""})"
            "\n");
  EXPECT_THAT(ToJson({.time = kTime,
                      .severity = "INFO",
                      .file = "a.cc",
                      .fields = {.method = "CancelJob",
                                 .resource = "net-7",
                                 .caller = "anonymous",
                                 .address = "10.0.0.1:40812",
                                 .result = "OK"}}),
              HasSubstr(R"("method": "CancelJob", "resource": "net-7", "caller": "anonymous", )"
                        R"("address": "10.0.0.1:40812", "result": "OK")"));
}

TEST(JsonLogTest, IsValidForAnyBytesInTheTexts) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  const std::string line = ToJson({.time = kTime,
                                   .severity = "INFO",
                                   .file = bytes,
                                   .fields = {.job = bytes, .caller = bytes},
                                   .message = absl::StrCat("Grüße \xe2\x82\xac", bytes),
                                   .stack = {bytes, ""}});

  EXPECT_EQ(line.find('\n'), line.size() - 1) << "one line";
  const std::string read = Field(Parse(line), "message");
  EXPECT_THAT(read,
              ::testing::StartsWith(absl::StrCat("Grüße \xe2\x82\xac", bytes.substr(0, 128))));
  EXPECT_THAT(read, ::testing::EndsWith(std::string(128, '?')));
}

TEST(JsonLogTest, TheFlagAcceptsOnlyTextAndJson) {
  LogFormat format = LogFormat::kText;
  std::string error;
  EXPECT_TRUE(AbslParseFlag("json", &format, &error));
  EXPECT_EQ(AbslUnparseFlag(format), "json");
  EXPECT_TRUE(AbslParseFlag("text", &format, &error));
  EXPECT_EQ(AbslUnparseFlag(format), "text");
  EXPECT_FALSE(AbslParseFlag("xml", &format, &error));
  EXPECT_EQ(error, "it must be text or json");
}

// Matches the stderr of a death test's process: only objects, with these messages.
MATCHER_P(AreLines, messages, "") {
  std::vector<std::string> read;
  for (const auto& line : absl::StrSplit(std::string(arg), '\n', absl::SkipEmpty())) {
    read.push_back(Field(Parse(std::string(line)), "message"));
  }
  return ::testing::ExplainMatchResult(::testing::ElementsAreArray(messages), read,
                                       result_listener);
}

// Initialises logging as a daemon does.
void Begin(LogFormat format) {
  FLAGS_logtostderr = true;
  google::InitGoogleLogging("json_log_test");
  SetLogFormat(format, "json_log_test");
}

void LogALittle() {
  Begin(LogFormat::kJson);
  grpc_init();
  LOG(INFO) << "two\nlines, and \"quotes\"";
  LOG(WARNING) << "a warning";
  gpr_log(__FILE__, __LINE__, GPR_LOG_SEVERITY_ERROR, "of %s", "gRPC");
  LogInSignalHandler("of a handler");
  std::exit(0);
}

TEST(JsonLogDeathTest, EveryLineIsAnObject) {
  const std::vector<std::string> messages = {"two\nlines, and \"quotes\"", "a warning", "of gRPC",
                                             "of a handler"};
  EXPECT_EXIT(LogALittle(), ExitedWithCode(0), AreLines(messages));
}

void LogInScopes() {
  Begin(LogFormat::kJson);
  const LogScope scope({.job = "net-7", .generation = 3});
  LOG(INFO) << "ready";
  std::exit(0);
}

TEST(JsonLogDeathTest, ALineHasTimeSourceAndFields) {
  EXPECT_EXIT(LogInScopes(), ExitedWithCode(0),
              ::testing::ContainsRegex(
                  R"(^."time": "20[0-9-]*T[0-9:.]*Z", "severity": "INFO", "source": )"
                  R"("lib/log/json_log_test.cc:[0-9]*", "job": "net-7", "generation": 3, )"
                  R"("message": "ready"..$)"));
}

void Fail(LogFormat format) {
  Begin(format);
  const LogScope scope({.job = "net-7"});
  CHECK_EQ(1, 2) << "the end";
}

TEST(JsonLogDeathTest, AFatalLineHasItsStackAndNothingFollows) {
  const std::vector<std::string> messages = {"Check failed: 1 == 2 (1 vs. 2) the end"};
  EXPECT_EXIT(Fail(LogFormat::kJson), KilledBySignal(SIGABRT), AreLines(messages));
  EXPECT_EXIT(Fail(LogFormat::kJson), KilledBySignal(SIGABRT),
              ::testing::ContainsRegex(R"("severity": "FATAL".*"job": "net-7".*"stack": )"
                                       R"(\["[0-9a-f]* muster::json_log_test::.*Fail)"));
}

TEST(JsonLogDeathTest, TextStaysAsGlogWritesIt) {
  EXPECT_EXIT(Fail(LogFormat::kText), KilledBySignal(SIGABRT),
              AllOf(::testing::ContainsRegex("F20.* json_log_test.cc:[0-9]*\\] Check failed"),
                    HasSubstr("Check failure stack trace"), Not(HasSubstr("\"severity\""))));
}

}  // namespace
}  // namespace muster::json_log_test
