#include "lib/log/log_scope.h"

#include <thread>

#include "gtest/gtest.h"

namespace muster::log_scope_test {
namespace {

TEST(LogScopeTest, TheInnermostScopeWithAFieldWins) {
  const LogScope job({.job = "net-7", .generation = 2});
  {
    const LogScope member({.member = "ps-1"});
    EXPECT_EQ(LogScope::Current().member, "ps-1");
    EXPECT_EQ(LogScope::Current().job, "net-7");
    EXPECT_EQ(LogScope::Current().generation, 2);
    const LogScope next({.job = "net-7", .generation = 3});
    EXPECT_EQ(LogScope::Current().generation, 3);
  }
  EXPECT_EQ(LogScope::Current().member, "");
  EXPECT_EQ(LogScope::Current().generation, 2);
}

TEST(LogScopeTest, AnotherJobDoesNotInheritTheGeneration) {
  const LogScope job({.job = "net-7", .generation = 2});
  const LogScope other({.job = "net-8"});
  EXPECT_EQ(LogScope::Current().job, "net-8");
  EXPECT_EQ(LogScope::Current().generation, 0);
}

TEST(LogScopeTest, BelongsToOneThreadAndCanBePassedToAnother) {
  const LogScope job({.job = "net-7"});
  std::thread([fields = LogScope::Current()] {
    EXPECT_EQ(LogScope::Current().job, "");
    const LogScope scope(fields);
    EXPECT_EQ(LogScope::Current().job, "net-7");
  }).join();
}

TEST(LogScopeTest, AHelperThreadLogsWithTheFieldsOfItsCaller) {
  const LogScope job({.job = "net-7", .generation = 2});
  std::thread([scopes = LogScope::Innermost()] {
    {
      const LogScope scope(scopes);
      EXPECT_EQ(LogScope::Current().generation, 2);
      const LogScope inner({.member = "ps-1"});
      EXPECT_EQ(LogScope::Current().job, "net-7");
      EXPECT_EQ(LogScope::Current().member, "ps-1");
    }
    EXPECT_EQ(LogScope::Current().job, "");
    const LogScope of_none(LogScope::Innermost());
    EXPECT_EQ(LogScope::Current().job, "");
  }).join();
  EXPECT_EQ(LogScope::Current().job, "net-7");
}

TEST(LogScopeTest, TheProcessMemberIsTheDefault) {
  LogScope::SetProcessMember("worker-0");
  EXPECT_EQ(LogScope::Current().member, "worker-0");
  const LogScope scope({.member = "worker-1"});
  EXPECT_EQ(LogScope::Current().member, "worker-1");
  LogScope::SetProcessMember("");
}

}  // namespace
}  // namespace muster::log_scope_test
