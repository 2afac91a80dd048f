#include "lib/fleet/address.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/fleet/channel.h"

namespace muster::address_test {
namespace {

using ::testing::HasSubstr;

TEST(AddressTest, EachAddressNeedsAPort) {
  for (const char* good : {"127.0.0.1:7070", "host:1", "a:1,b:65535", "[::1]:7070", "dns:///host",
                           "unix:/run/muster.sock"}) {
    EXPECT_TRUE(CheckAddresses(good).ok()) << good << ": " << CheckAddresses(good);
  }
  for (const char* faulty : {"127.0.0.1", "host", "a:1,b", "host:", "host:0", "host:65536",
                             "host:http", "[::1]", "::1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckAddresses(faulty))) << faulty;
  }
}

TEST(AddressTest, TheErrorSuggestsAnAddress) {
  auto message = [](const char* address) { return std::string(CheckAddresses(address).message()); };
  EXPECT_THAT(message("127.0.0.1"), HasSubstr("'127.0.0.1' has no port"));
  EXPECT_THAT(message("127.0.0.1"), HasSubstr("type 127.0.0.1:7070 "));
  EXPECT_THAT(message("host:"), HasSubstr("type host:7070 "));
  EXPECT_THAT(message("::1"), HasSubstr("type [::1]:7070 "));
  EXPECT_THAT(message("[::1]"), HasSubstr("type [::1]:7070 "));
}

TEST(AddressTest, SecureTargetRefusesAnAddressWithoutAPort) {
  EXPECT_TRUE(
      absl::IsInvalidArgument(SecureTarget("127.0.0.1", {.tls = "", .token_file = ""}).status()));
}

}  // namespace
}  // namespace muster::address_test
