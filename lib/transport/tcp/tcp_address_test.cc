#include "lib/transport/tcp/tcp_address.h"

#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "lib/transport/core/address_envelope.h"

namespace muster::tcp_address_test {
namespace {

const TcpAddress kAddress = {
    .port = 0x0102030405060708,
    .transport = 9,
    .endpoints = {{.host = "ps-0", .port = 7000}, {.host = "fd00::2", .port = 65535}}};

TEST(TcpAddressTest, DecodesWhatItEncodes) {
  const auto decoded = DecodeTcpAddress(EncodeTcpAddress(kAddress));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, kAddress);
}

TEST(TcpAddressTest, TheBytesAreThoseOfTheHeaderComment) {
  const TcpAddress address = {.port = 1, .transport = 2, .endpoints = {{.host = "a", .port = 3}}};
  EXPECT_EQ(EncodeTcpAddress(address),
            SealAddress("MUT1", std::string("\1\0\0\0\0\0\0\0\2\0\0\0\3\0\1a", 16)));
}

TEST(TcpAddressTest, ATruncatedAddressIsRefused) {
  const std::string whole("\1\0\0\0\0\0\0\0\2\0\0\0\3\0\2ab", 17);
  ASSERT_TRUE(DecodeTcpAddress(SealAddress("MUT1", whole)).ok());
  for (size_t bytes = 1; bytes < whole.size(); ++bytes) {
    const auto decoded = DecodeTcpAddress(SealAddress("MUT1", whole.substr(0, bytes)));
    EXPECT_TRUE(absl::IsInvalidArgument(decoded.status())) << bytes;
  }
}

TEST(TcpAddressTest, AnEmptyHostAndTooManyEndpointsAreRefused) {
  TcpAddress address = kAddress;
  address.endpoints.assign(TcpAddress::kEndpointsMax, {.host = "a", .port = 1});
  EXPECT_TRUE(DecodeTcpAddress(EncodeTcpAddress(address)).ok());
  address.endpoints.push_back({.host = "a", .port = 1});
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeTcpAddress(EncodeTcpAddress(address)).status()));
  address.endpoints = {{.host = "", .port = 1}};
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeTcpAddress(EncodeTcpAddress(address)).status()));
}

TEST(TcpAddressTest, AnAddressOfAnotherTransportIsRefused) {
  const std::string inside("\1\0\0\0\0\0\0\0\2\0\0\0\3\0\1a", 16);
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeTcpAddress(SealAddress("MUX1", inside)).status()));
}

}  // namespace
}  // namespace muster::tcp_address_test
