#include "lib/fleet/security_flags.h"

#include <gtest/gtest.h>

#include "gmock/gmock.h"
#include "lib/security/identity.h"
#include "lib/status/status.h"

namespace muster::security_flags_test {
namespace {

using ::testing::HasSubstr;

TEST(ListenAddress, IsLoopbackWithoutTlsOrInsecure) {
  EXPECT_EQ(*ListenAddress({}, "", 7070), "127.0.0.1:7070");
  EXPECT_EQ(*ListenAddress({.tls = "/certs"}, "", 7070), "0.0.0.0:7070");
  EXPECT_EQ(*ListenAddress({.insecure = true}, "", 7070), "0.0.0.0:7070");
}

TEST(ExportSecurity, ExportsWhetherTheProcessIsInsecure) {
  Metrics open, closed;
  ExportSecurity({.insecure = true}, Role::kPs, open);
  ExportSecurity({}, Role::kPs, closed);
  EXPECT_THAT(open.Render(), HasSubstr("\nmuster_insecure 1\n"));
  EXPECT_THAT(closed.Render(), HasSubstr("\nmuster_insecure 0\n"));
}

TEST(ListenAddress, UsesTheGivenAddressOrNamesTheFlagsThatAllowIt) {
  for (const char* own : {"127.0.0.1:7", "127.1.2.3:7", "localhost:7", "[::1]:7"}) {
    EXPECT_EQ(*ListenAddress({}, own, 7070), own);
  }
  for (const char* open : {"0.0.0.0:7", "[::]:7", "10.0.0.1:7", "coordinator:7", ":7",
                           "1270.0.0.1:7", "127.example.org:7"}) {
    const auto refused = ListenAddress({}, open, 7070);
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << open;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--tls"));
    EXPECT_EQ(*ListenAddress({.insecure = true}, open, 7070), open);
  }
}

TEST(TargetFor, ACoordinatorBeyondThisHostNeedsTlsOrInsecure) {
  EXPECT_TRUE(TargetFor({}, "127.0.0.1:7070").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(TargetFor({}, "muster-coordinator:7070").status()));
  EXPECT_TRUE(TargetFor({}, "127.0.0.1:7070,localhost:7071").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(TargetFor({}, "127.0.0.1:7070,elsewhere:7070").status()));
  const auto open = TargetFor({.insecure = true}, "muster-coordinator:7070");
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_EQ(open->credentials(), nullptr);
  const auto missing = TargetFor({.tls = "/nowhere"}, "muster-coordinator:7070");
  EXPECT_EQ(ReasonOf(missing.status()), "CERTIFICATE_FILES");
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/nowhere/tls.crt"));
}

TEST(SecureTarget, ATokenIsNotSentInPlaintext) {
  EXPECT_EQ(ReasonOf(SecureTarget("127.0.0.1:1", {.tls = "", .token_file = "t"}).status()),
            "TOKEN_FILE");
}

}  // namespace
}  // namespace muster::security_flags_test
