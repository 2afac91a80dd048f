#include "lib/transport/shm/control_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/transport/session/session.h"
#include "lib/transport/shm/local_address.h"
#include "lib/transport/testing/no_descriptors_left.h"

namespace muster::control_socket_test {
namespace {

using Kind = ControlPacket::Kind;

ControlPacket PacketOf(Kind kind) {
  ControlPacket packet{.kind = kind};
  switch (kind) {
    case Kind::kHello:
      packet.bytes = 1 << 20;
      break;
    case Kind::kIntroduce:
      packet.who = {.job = uint64_t{42} << 40,
                    .generation = 3,
                    .role = LinkRole::kShard,
                    .index = 0xfffffffe};
      packet.token = *SessionToken::FromBytes("0123456789abcdef");
      break;
    case Kind::kRefused:
      packet.refusal = ControlPacket::Refusal::kNotLetIn;
      break;
    case Kind::kSlab:
      packet.bytes = 1 << 20;
      [[fallthrough]];
    case Kind::kWithdraw:
      packet.slab = 7;
      break;
    case Kind::kBell:
    case Kind::kBye:
      break;
  }
  return packet;
}

TEST(ControlPacketTest, EncodedPacketsAreDecodedAndChangedOnesRefused) {
  const uint32_t seed = 5;
  std::mt19937_64 random(seed);
  for (const Kind kind : {Kind::kHello, Kind::kIntroduce, Kind::kBell, Kind::kRefused, Kind::kSlab,
                          Kind::kWithdraw, Kind::kBye}) {
    const ControlPacket packet = PacketOf(kind);
    const auto bytes = EncodePacket(packet);
    auto decoded = DecodePacket(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, packet);

    EXPECT_FALSE(DecodePacket(absl::MakeConstSpan(bytes).first(39)).ok());
    for (size_t at : {0, 1, 2, 3, 4, 5, 6, 7}) {
      auto wrong = bytes;
      wrong[at] ^= std::byte{0x80};
      EXPECT_TRUE(absl::IsInvalidArgument(DecodePacket(wrong).status())) << at;
    }
    for (int draw = 0; draw < 5000; ++draw) {
      auto noise = bytes;
      for (int i = 0; i < 3; ++i) noise[random() % noise.size()] = static_cast<std::byte>(random());
      const auto made = DecodePacket(noise);
      ASSERT_TRUE(!made.ok() || EncodePacket(*made) == noise) << "seed " << seed;
    }
  }
  EXPECT_FALSE(DecodePacket({}).ok());
}

TEST(ControlPacketTest, FieldsThatAKindDoesNotUseMustBeZero) {
  const auto refused = [](Kind kind, std::initializer_list<size_t> places) {
    for (size_t at : places) {
      auto wrong = EncodePacket(PacketOf(kind));
      wrong[at] = std::byte{1};
      EXPECT_TRUE(absl::IsInvalidArgument(DecodePacket(wrong).status())) << at;
    }
  };
  refused(Kind::kHello, {7, 8, 12, 24, 39});
  refused(Kind::kBell, {7, 8, 12, 16, 24, 39});
  refused(Kind::kRefused, {7, 11, 12, 16, 24, 39});
  refused(Kind::kSlab, {7, 12, 24, 39});
  refused(Kind::kWithdraw, {7, 12, 16, 24, 39});
  refused(Kind::kBye, {7, 8, 12, 16, 24, 39});
  auto no_role = EncodePacket(PacketOf(Kind::kIntroduce));
  no_role[7] = std::byte{3};
  EXPECT_TRUE(absl::IsInvalidArgument(DecodePacket(no_role).status()));
}

// docs/protocol.md shows these bytes.
TEST(ControlPacketTest, AnIntroductionHasTheBytesOfTheProtocol) {
  const uint8_t expected[ControlPacket::kBytes] = {
      0x4d, 0x53, 0x4c, 0x4b, 3,    0,    2,    1,    1,    0,    0,    0,    3,    0,
      0,    0,    42,   0,    0,    0,    0,    0,    0,    0,    0x30, 0x31, 0x32, 0x33,
      0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x61, 0x62, 0x63, 0x64, 0x65, 0x66};
  const auto bytes =
      EncodePacket({.kind = Kind::kIntroduce,
                    .who = {.job = 42, .generation = 3, .role = LinkRole::kWorker, .index = 1},
                    .token = *SessionToken::FromBytes("0123456789abcdef")});
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof(expected)), 0);
}

int OpenDescriptors() {
  int count = 0;
  for (int fd = 0; fd < 4096; ++fd) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

// Two ends of a control connection.
struct SocketPair {
  const std::string name = LocalAddress::Make()->SocketName();
  ControlSocket listener = *ControlSocket::Listen(name);
  ControlSocket speaker = *ControlSocket::Connect(name);
  ControlSocket listening = std::move(**listener.Accept());
};

TEST(ControlSocketTest, PacketsArriveThoughTheirSenderClosedWithoutReading) {
  SocketPair sockets;
  ASSERT_TRUE(sockets.listening.Send({.kind = Kind::kBell}).ok());
  for (uint32_t slab = 1; slab <= 2; ++slab) {
    ASSERT_TRUE(sockets.speaker.Send({.kind = Kind::kWithdraw, .slab = slab}).ok());
  }
  { const ControlSocket closed = std::move(sockets.speaker); }

  for (uint32_t slab = 1; slab <= 2; ++slab) {
    auto heard = sockets.listening.Receive();
    ASSERT_TRUE(heard.ok() && heard->has_value()) << heard.status();
    EXPECT_EQ((*heard)->packet.slab, slab);
  }
  EXPECT_TRUE(absl::IsUnavailable(sockets.listening.Receive().status()));
}

TEST(ControlSocketTest, APacketWithSeveralFilesIsRefusedAndLeaksNone) {
  SocketPair sockets;
  for (const size_t count : {2, 3, 100, 253}) {
    auto bytes = EncodePacket({.kind = Kind::kBell});
    iovec data{.iov_base = bytes.data(), .iov_len = bytes.size()};
    std::vector<std::byte> buffer(CMSG_SPACE(count * sizeof(int)));
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = buffer.data();
    message.msg_controllen = buffer.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    *header = {.cmsg_len = CMSG_LEN(count * sizeof(int)),
               .cmsg_level = SOL_SOCKET,
               .cmsg_type = SCM_RIGHTS};
    const std::vector<int> files(count, STDERR_FILENO);
    std::memcpy(CMSG_DATA(header), files.data(), count * sizeof(int));
    const int before = OpenDescriptors();
    ASSERT_EQ(sendmsg(sockets.speaker.fd(), &message, 0), static_cast<ssize_t>(bytes.size()));
    const auto heard = sockets.listening.Receive();
    EXPECT_TRUE(absl::IsInvalidArgument(heard.status())) << heard.status();
    EXPECT_EQ(OpenDescriptors(), before) << count;
  }
}

TEST(ControlSocketTest, AMissingDescriptorIsNotBlamedOnTheSender) {
  SocketPair sockets;
  ASSERT_TRUE(sockets.speaker.Send({.kind = Kind::kBell}, STDERR_FILENO).ok());
  ASSERT_TRUE(sockets.speaker.Send({.kind = Kind::kWithdraw, .slab = 1}).ok());
  {
    const NoDescriptorsLeft none;
    const auto heard = sockets.listening.Receive();
    EXPECT_TRUE(absl::IsResourceExhausted(heard.status())) << heard.status();
  }
  const auto heard = sockets.listening.Receive();
  ASSERT_TRUE(heard.ok() && heard->has_value()) << heard.status();
  EXPECT_EQ((*heard)->packet.slab, 1u);
}

}  // namespace
}  // namespace muster::control_socket_test
