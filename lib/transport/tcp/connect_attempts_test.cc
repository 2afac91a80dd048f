#include "lib/transport/tcp/connect_attempts.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace muster::connect_attempts_test {
namespace {

SocketAddress At(const std::string& host, uint16_t port) {
  return *SocketAddress::Numeric(host, port);
}

// Returns "127.0.0.1:1" for an address to dial, "name ps:2" for a name to resolve, or the final
// status.
std::string NextOf(ConnectAttempts& attempts) {
  const ConnectAttempts::Next next = attempts.Take();
  if (const auto* address = absl::get_if<SocketAddress>(&next)) return address->ToString();
  if (const auto* name = absl::get_if<Endpoint>(&next)) return "name " + ToString(*name);
  return absl::get<absl::Status>(next).ToString();
}

TEST(ConnectAttemptsTest, TheAddressesOfANameTakeItsPlace) {
  ConnectAttempts attempts({{"127.0.0.1", 1}, {"ps", 2}, {"127.0.0.3", 3}});
  EXPECT_EQ(NextOf(attempts), "127.0.0.1:1");
  EXPECT_EQ(NextOf(attempts), "name ps:2");
  attempts.Resolved({At("127.0.0.2", 2), At("::1", 2)});
  EXPECT_EQ(NextOf(attempts), "127.0.0.2:2");
  EXPECT_EQ(NextOf(attempts), "[::1]:2");
  EXPECT_EQ(NextOf(attempts), "127.0.0.3:3");
  attempts.Failed(absl::UnavailableError("nobody there"));
  EXPECT_EQ(NextOf(attempts), "UNAVAILABLE: nobody there");
}

TEST(ConnectAttemptsTest, TheMostInformativeStatusWinsAndEqualOnesAreJoined) {
  ConnectAttempts attempts;
  attempts.Failed(absl::UnavailableError("a: refused"));
  attempts.Failed(absl::UnavailableError("b: refused"));
  EXPECT_EQ(NextOf(attempts), "UNAVAILABLE: a: refused; b: refused");
  attempts.Failed(absl::FailedPreconditionError("another version"));
  EXPECT_EQ(NextOf(attempts), "FAILED_PRECONDITION: another version");
  attempts.Failed(absl::PermissionDeniedError("not let in"));
  attempts.Failed(absl::UnavailableError("c: refused"));
  EXPECT_EQ(NextOf(attempts), "PERMISSION_DENIED: not let in");
}

TEST(ConnectAttemptsTest, AnAddressThatHangsUpIsTriedAgainAFewTimes) {
  ConnectAttempts attempts({{"127.0.0.1", 1}, {"127.0.0.2", 2}});
  EXPECT_EQ(NextOf(attempts), "127.0.0.1:1");
  for (int i = 0; i < ConnectAttempts::kRepeatsMax; ++i) {
    EXPECT_TRUE(attempts.Repeat(At("127.0.0.1", 1)));
    EXPECT_EQ(NextOf(attempts), "127.0.0.1:1");
  }
  EXPECT_FALSE(attempts.Repeat(At("127.0.0.1", 1)));
  EXPECT_EQ(NextOf(attempts), "127.0.0.2:2");
}

TEST(ConnectAttemptsTest, NothingIsTriedAfterAStop) {
  ConnectAttempts attempts({{"127.0.0.1", 1}, {"ps", 2}});
  EXPECT_TRUE(attempts.Repeat(At("127.0.0.3", 3)));
  attempts.Stop();
  attempts.Failed(absl::UnavailableError("lost"));
  EXPECT_EQ(NextOf(attempts), "UNAVAILABLE: lost");
}

}  // namespace
}  // namespace muster::connect_attempts_test
