// UCX between processes, and against those that mean it ill. What every Transport must do is in
// transport_test.cc.
#include "lib/transport/ucx_transport.h"

#include <arpa/inet.h>
#include <glog/logging.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/transport/child_process.h"
#include "lib/transport/postbox.h"
#include "lib/transport/transport.h"
#include "lib/transport/wire.h"

namespace muster {
namespace {

std::unique_ptr<UcxTransport> MakeTransport(MessageReceiver& receiver) {
  auto transport = UcxTransport::Create();
  CHECK(transport.ok()) << transport.status();
  (*transport)->SetReceiver(&receiver);
  return *std::move(transport);
}

// ---- Roles of this program when it starts itself.

constexpr int kSkipped = 77;

// Sends every message back to the transport whose address (in hex) is the first line of stdin. Ends
// with stdin.
int Echo() {
  Postbox postbox;
  auto transport = MakeTransport(postbox);
  std::cout << absl::BytesToHexString(transport->address()) << std::endl;
  std::string line;
  std::getline(std::cin, line);
  auto peer = transport->Connect(absl::HexStringToBytes(line));
  CHECK(peer.ok()) << peer.status();
  postbox.on_message = [&](const Postbox::Message& message) {
    transport->Send(*peer, message.header, message.payload, nullptr);
  };
  std::jthread watching([&](std::stop_token) {
    while (std::getline(std::cin, line)) {
    }
    postbox.on_message = nullptr;
    std::cin.setstate(std::ios::failbit);
    transport->Wake();
  });
  while (std::cin.good() && postbox.losses.empty()) {
    if (transport->Progress() == 0) transport->Wait(absl::Seconds(1));
  }
  return 0;
}

// Two transports meet where there is no network but loopback.
int MeetOnLoopbackOnly() {
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return kSkipped;
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request{};
  std::strncpy(request.ifr_name, "lo", IFNAMSIZ - 1);
  request.ifr_flags = IFF_UP;
  if (ioctl(fd, SIOCSIFFLAGS, &request) != 0) return kSkipped;
  Postbox a_box, b_box;
  auto a = MakeTransport(a_box), b = MakeTransport(b_box);
  const PeerId to_b = *a->Connect(b->address());
  const std::vector<std::byte> payload = PatternOf(1, 1'000'000);
  a->Send(to_b, HeaderOf(1, payload.size()), payload, nullptr);
  const bool arrived =
      ProgressUntil({a.get(), b.get()}, [&] { return b_box.messages.size() == 1; });
  return arrived && b_box.messages[0].payload == absl::MakeConstSpan(payload) ? 0 : 1;
}

// ---- Large payloads of several senders.

WireHeader HeaderOfRank(uint32_t rank, size_t length) {
  WireHeader header = HeaderOf(0, length);
  header.rank = rank;
  return header;
}

// Over one connection, which by itself would keep them in order.
TEST(UcxTurnsTest, RanksAreServedInTurnsWhoeverCameFirst) {
  constexpr int kMessages = 16;
  Postbox receiver_box, unused;
  auto receiver = MakeTransport(receiver_box), sender = MakeTransport(unused);
  const std::vector<std::byte> payload = PatternOf(1, 1 << 20);
  std::array<int, 2> arrived = {0, 0};
  receiver_box.on_message = [&](const Postbox::Message& message) {
    ++arrived[message.header.rank];
    EXPECT_EQ(message.payload, absl::MakeConstSpan(payload));
  };
  const PeerId peer = *sender->Connect(receiver->address());
  for (uint32_t rank : {0, 1}) {
    for (int i = 0; i < kMessages; ++i) {
      sender->Send(peer, HeaderOfRank(rank, payload.size()), payload, nullptr);
    }
  }
  ASSERT_TRUE(
      ProgressUntil({receiver.get(), sender.get()}, [&] { return arrived[1] == kMessages / 2; }));
  EXPECT_LE(arrived[0], kMessages / 2 + 5) << "with four under way";
  ASSERT_TRUE(ProgressUntil({receiver.get(), sender.get()},
                            [&] { return arrived[0] + arrived[1] == 2 * kMessages; }));
}

TEST(UcxTurnsTest, ASenderThatIsGoneBeforeItsTurnHarmsNobody) {
  constexpr int kMessages = 16;
  Postbox receiver_box, unused;
  auto receiver = MakeTransport(receiver_box);
  auto dying = MakeTransport(unused), living = MakeTransport(unused);
  const std::vector<std::byte> payload = PatternOf(2, 1 << 20);
  const PeerId from_dying = *dying->Connect(receiver->address());
  for (int i = 0; i < kMessages; ++i) {
    dying->Send(from_dying, HeaderOfRank(0, payload.size()), payload, nullptr);
  }
  ASSERT_TRUE(
      ProgressUntil({receiver.get(), dying.get()}, [&] { return !receiver_box.messages.empty(); }));
  dying.reset();
  const PeerId from_living = *living->Connect(receiver->address());
  int of_living = 0;
  receiver_box.on_message = [&](const Postbox::Message& message) {
    of_living += static_cast<int>(message.header.rank);
  };
  for (int i = 0; i < kMessages; ++i) {
    living->Send(from_living, HeaderOfRank(1, payload.size()), payload, nullptr);
  }
  EXPECT_TRUE(
      ProgressUntil({receiver.get(), living.get()}, [&] { return of_living == kMessages; }));
}

// ---- Between processes.

class EchoTest : public testing::Test {
 protected:
  EchoTest() : transport_(MakeTransport(postbox_)) {
    auto peer = transport_->Connect(absl::HexStringToBytes(child_.ReadLine()));
    CHECK(peer.ok()) << peer.status();
    peer_ = *peer;
    child_.WriteLine(absl::BytesToHexString(transport_->address()));
  }

  ChildProcess child_{"--echo"};
  Postbox postbox_;
  std::unique_ptr<UcxTransport> transport_;
  PeerId peer_;
};

TEST_F(EchoTest, MessagesOfEverySizeComeBackWhole) {
  uint32_t number = 0;
  for (size_t size : {0, 1, 4096, 16383, 16384, 100'000, 4 << 20, 64 << 20}) {
    const std::vector<std::byte> payload = PatternOf(++number, size);
    transport_->Send(peer_, HeaderOf(number, size), payload, nullptr);
    ASSERT_TRUE(ProgressUntil({transport_.get()}, [&] {
      return postbox_.messages.size() == number;
    })) << size;
    EXPECT_EQ(postbox_.messages.back().header, HeaderOf(number, size));
    EXPECT_TRUE(postbox_.messages.back().payload == absl::MakeConstSpan(payload)) << size;
  }
  EXPECT_EQ(transport_->malformed_messages(), 0);
  EXPECT_TRUE(absl::StartsWith(transport_->name(), "ucx:")) << transport_->name();
  child_.CloseInput();
  EXPECT_EQ(child_.Wait(), 0);
}

TEST_F(EchoTest, ManyLargeMessagesInBothDirectionsComeBackOnce) {
  constexpr uint32_t kMessages = 64;
  std::vector<std::vector<std::byte>> payloads;
  for (uint32_t i = 0; i < kMessages; ++i) payloads.push_back(PatternOf(i, 1'000'000 + 1000 * i));
  for (uint32_t i = 0; i < kMessages; ++i) {
    transport_->Send(peer_, HeaderOf(i, payloads[i].size()), payloads[i], nullptr);
  }
  ASSERT_TRUE(
      ProgressUntil({transport_.get()}, [&] { return postbox_.messages.size() >= kMessages; }));
  std::set<uint32_t> seen;
  for (const Postbox::Message& message : postbox_.messages) {
    EXPECT_TRUE(seen.insert(message.header.chunk).second);
    EXPECT_TRUE(message.payload == absl::MakeConstSpan(payloads[message.header.chunk]));
  }
}

TEST_F(EchoTest, AKilledPeerIsLostWithinSecondsAndSendsUnderWayEnd) {
  constexpr int kMessages = 8;
  const std::vector<std::byte> payload = PatternOf(1, 32 << 20);
  int dones = 0;
  for (int i = 0; i < kMessages; ++i) {
    transport_->Send(peer_, HeaderOf(i, payload.size()), payload,
                     [&](const absl::Status&) { ++dones; });
  }
  ASSERT_TRUE(ProgressUntil({transport_.get()}, [&] { return !postbox_.messages.empty(); }));

  child_.Kill();

  ASSERT_TRUE(ProgressUntil(
      {transport_.get()}, [&] { return dones == kMessages && !postbox_.losses.empty(); },
      std::chrono::seconds(5)))
      << dones << " of " << kMessages << " sends ended";
  EXPECT_EQ(postbox_.losses.size(), 1u);
  EXPECT_EQ(postbox_.losses[0].first, peer_);
  transport_->Disconnect(peer_);
}

TEST_F(EchoTest, AnIdlePeerThatIsKilledIsLostWithinSeconds) {
  transport_->Send(peer_, HeaderOf(1, 0), {}, nullptr);
  ASSERT_TRUE(ProgressUntil({transport_.get()}, [&] { return !postbox_.messages.empty(); }));
  child_.Kill();
  ASSERT_TRUE(ProgressUntil(
      {transport_.get()}, [&] { return !postbox_.losses.empty(); }, std::chrono::seconds(5)));
}

TEST(UcxTransportTest, LoopbackAloneIsNetworkEnough) {
  ChildProcess child("--loopback");
  const int status = child.Wait();
  if (status == kSkipped) GTEST_SKIP() << "no network namespaces for this user here";
  EXPECT_EQ(status, 0);
}

// ---- Against garbage.

std::vector<uint16_t> ListeningPortsOfThisProcess() {
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (absl::StartsWith(target, "socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::vector<uint16_t> ports;
  std::ifstream table("/proc/self/net/tcp");
  for (std::string line; std::getline(table, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    uint32_t port = 0;
    if (fields.size() < 10 || fields[3] != "0A" || !inodes.contains(fields[9])) continue;
    const std::vector<std::string> local = absl::StrSplit(fields[1], ':');
    if (absl::SimpleHexAtoi(local[1], &port)) ports.push_back(static_cast<uint16_t>(port));
  }
  return ports;
}

class Intruder {
 public:
  explicit Intruder(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    // A port on another interface does not answer here.
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Intruder() { close(fd_); }
  Intruder(const Intruder&) = delete;

  bool connected() const { return connected_; }
  void Send(absl::Span<const std::byte> bytes) {
    send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

 private:
  const int fd_;
  bool connected_;
};

TEST(UcxTransportTest, GarbageAtTheDataPortKillsNothing) {
  Postbox a_box, b_box;
  auto a = MakeTransport(a_box), b = MakeTransport(b_box);
  const std::vector<uint16_t> ports = ListeningPortsOfThisProcess();
  ASSERT_FALSE(ports.empty());
  const uint32_t seed = 4711;
  std::mt19937_64 random(seed);
  std::vector<std::vector<std::byte>> attacks;
  attacks.push_back(std::vector<std::byte>(1 << 16, std::byte{0xff}));  // all lengths are huge
  attacks.push_back(std::vector<std::byte>(1 << 16, std::byte{0}));
  attacks.push_back({});
  for (int i = 0; i < 30; ++i) {
    std::vector<std::byte> noise(random() % 4000 + 1);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    attacks.push_back(noise);
  }
  std::vector<std::unique_ptr<Intruder>> intruders;
  int connected = 0;
  for (uint16_t port : ports) {
    for (const std::vector<std::byte>& attack : attacks) {
      auto intruder = std::make_unique<Intruder>(port);
      if (!intruder->connected()) continue;
      ++connected;
      intruder->Send(attack);
      if (connected % 2 == 0) intruders.push_back(std::move(intruder));  // the others hang up
    }
  }
  ASSERT_GT(connected, 0);

  const PeerId to_b = *a->Connect(b->address());
  const std::vector<std::byte> payload = PatternOf(1, 1'000'000);
  for (uint32_t i = 1; i <= 20; ++i) {
    a->Send(to_b, HeaderOf(i, payload.size()), payload, nullptr);
    ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return b_box.messages.size() == i; }))
        << "seed " << seed;
  }
  EXPECT_TRUE(a_box.losses.empty());
  EXPECT_TRUE(b_box.losses.empty());
}

// A peer that speaks UCX and sends what no Muster process would.
class Forger {
 public:
  explicit Forger(const std::string& address) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM;
    CHECK_EQ(ucp_init(&params, nullptr, &context_), UCS_OK);
    ucp_worker_params_t worker{};
    CHECK_EQ(ucp_worker_create(context_, &worker, &worker_), UCS_OK);
    ucp_ep_params_t endpoint{};
    endpoint.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    endpoint.address =
        reinterpret_cast<const ucp_address_t*>(address.data() + 8);  // past our envelope
    endpoint.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    CHECK_EQ(ucp_ep_create(worker_, &endpoint, &endpoint_), UCS_OK);
  }
  ~Forger() {
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }

  // `meanwhile` is called until the message is sent.
  template <typename Meanwhile>
  void Send(absl::Span<const std::byte> header, absl::Span<const std::byte> payload,
            Meanwhile meanwhile) {
    ucp_request_param_t param{};
    void* request = ucp_am_send_nbx(endpoint_, 0, header.data(), header.size(), payload.data(),
                                    payload.size(), &param);
    CHECK(!UCS_PTR_IS_ERR(request));
    while (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS) {
      ucp_worker_progress(worker_);
      meanwhile();
    }
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
    ucp_worker_progress(worker_);
  }

 private:
  ucp_context_h context_;
  ucp_worker_h worker_;
  ucp_ep_h endpoint_;
};

TEST(UcxTransportTest, MalformedMessagesAreDroppedAndCounted) {
  Postbox postbox;
  auto transport = MakeTransport(postbox);
  Forger forger(transport->address());
  auto progress = [&] { transport->Progress(); };
  const std::vector<std::byte> large = PatternOf(1, 500'000);
  const auto small = absl::MakeConstSpan(large).first(100);
  const auto good = EncodeHeader(HeaderOf(1, small.size()));
  auto flipped = good;
  flipped[30] ^= std::byte{1};

  forger.Send({}, small, progress);
  forger.Send(absl::MakeConstSpan(good).first(10), small, progress);
  forger.Send(absl::MakeConstSpan(large).first(1000), small, progress);
  forger.Send(flipped, small, progress);
  forger.Send(good, absl::MakeConstSpan(small).first(99), progress);  // length does not fit
  forger.Send(good, {}, progress);
  forger.Send(flipped, large, progress);  // of the kind that is fetched from the sender
  forger.Send(good, small, progress);

  ASSERT_TRUE(ProgressUntil({transport.get()}, [&] { return postbox.messages.size() == 1; }));
  EXPECT_EQ(transport->malformed_messages(), 7);
  EXPECT_TRUE(postbox.messages[0].payload == small);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "--echo") return muster::Echo();
  if (role == "--loopback") return muster::MeetOnLoopbackOnly();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
