// UCX between processes, and against hostile peers. transport_test.cc tests what every Transport
// must do.
#include "lib/transport/ucx/ucx_transport.h"

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
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/transport_backend.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "lib/transport/testing/child_process.h"
#include "lib/transport/testing/postbox.h"
#include "lib/transport/ucx/rdma_backend.h"

namespace muster::ucx_transport_test {
namespace {

using Networks = UcxTransportOptions::Networks;

// A transport with its own loop, and the test session open.
class Station {
 public:
  explicit Station(MessageReceiver& receiver) {
    auto transport = UcxTransport::Create(loop_.get(), {.networks = Networks::kAny});
    CHECK(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
    transport_->SetReceiver(&receiver);
    OpenTestSession(*transport_);
  }

  UcxTransport* operator->() const { return transport_.get(); }
  UcxTransport& operator*() const { return *transport_; }
  UcxTransport* get() const { return transport_.get(); }
  void reset() { transport_.reset(); }

  PeerId Connect(const Station& to, const LinkCredentials& credentials = CredentialsOf(0)) {
    auto peer = transport_->Connect(to->address(), credentials);
    CHECK(peer.ok()) << peer.status();
    return *peer;
  }

 private:
  const std::unique_ptr<EventLoop> loop_ = *EventLoop::Create();
  std::unique_ptr<UcxTransport> transport_;
};

// ---- Roles of this program when it starts itself.

constexpr int kSkipped = 77;

// Sends every message back to its sender. The first line on stdout is its address in hex. Ends when
// stdin closes.
int Echo() {
  Postbox postbox;
  Station station(postbox);
  postbox.on_message = [&](const Postbox::Message& message) {
    station->Send(message.from, message.header, message.payload, nullptr);
  };
  std::cout << absl::BytesToHexString(station->address()) << std::endl;
  std::atomic<bool> ends = false;
  std::jthread watching([&] {
    for (std::string line; std::getline(std::cin, line);) {
    }
    ends = true;
    station->Wake();
  });
  while (!ends && postbox.losses.empty()) {
    if (station->Progress() == 0) station->Wait(absl::Seconds(1));
  }
  return 0;
}

// Connects two transports in a network namespace that has only loopback.
int MeetOnLoopbackOnly() {
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return kSkipped;
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request{};
  std::strncpy(request.ifr_name, "lo", IFNAMSIZ - 1);
  request.ifr_flags = IFF_UP;
  if (ioctl(fd, SIOCSIFFLAGS, &request) != 0) return kSkipped;
  Postbox a_box, b_box;
  Station a(a_box), b(b_box);
  const PeerId to_b = a.Connect(b);
  const std::vector<std::byte> payload = PatternOf(1, 1'000'000);
  a->Send(to_b, HeaderOf(1, payload.size()), payload, nullptr);
  const bool arrived =
      ProgressUntil({a.get(), b.get()}, [&] { return b_box.messages.size() == 1; });
  return arrived && b_box.messages[0].payload == absl::MakeConstSpan(payload) ? 0 : 1;
}

// ---- Links.

TEST(UcxLinkTest, AConnectingPeerIsKnownAndAnsweredOnTheSameLink) {
  Postbox client_box, server_box;
  Station client(client_box), server(server_box);
  const LinkCredentials self = CredentialsOf(7, LinkRole::kShard);
  const PeerId to_server = client.Connect(server, self);
  const std::vector<std::byte> payload = PatternOf(1, 100'000);
  client->Send(to_server, HeaderOf(1, payload.size()), payload, nullptr);
  ASSERT_TRUE(
      ProgressUntil({client.get(), server.get()}, [&] { return !server_box.messages.empty(); }));
  ASSERT_EQ(server_box.joined.size(), 1u);
  const auto& [to_client, identity] = server_box.joined[0];
  EXPECT_EQ(identity, self.self);
  EXPECT_EQ(server_box.messages[0].from, to_client);

  server->Send(to_client, HeaderOf(2, payload.size()), payload, nullptr);
  ASSERT_TRUE(
      ProgressUntil({client.get(), server.get()}, [&] { return !client_box.messages.empty(); }));
  EXPECT_EQ(client_box.messages[0].from, to_server);
  EXPECT_TRUE(client_box.messages[0].payload == absl::MakeConstSpan(payload));
  EXPECT_TRUE(client_box.joined.empty()) << "the connecting side gets no PeerJoined";
}

TEST(UcxLinkTest, AJoiningPeerMayBeSentToBeforeItSendsAnything) {
  Postbox client_box;
  struct : Postbox {
    void PeerJoined(PeerId peer, const LinkIdentity&) override { joined(peer); }
    std::function<void(PeerId)> joined;
  } server_box;
  Station client(client_box), server(server_box);
  const std::vector<std::byte> payload = PatternOf(1, 100'000);
  server_box.joined = [&](PeerId peer) {
    for (size_t size : {0, 100, 100'000}) {
      server->Send(peer, HeaderOf(1, size), absl::MakeConstSpan(payload).first(size), nullptr);
    }
  };
  client.Connect(server);
  EXPECT_TRUE(
      ProgressUntil({client.get(), server.get()}, [&] { return client_box.messages.size() == 3; }));
}

TEST(UcxLinkTest, AWrongTokenAndASessionThatIsNotOpenAreRefusedAlike) {
  Postbox client_box, server_box;
  Station client(client_box), server(server_box);
  LinkCredentials wrong_token = CredentialsOf(0), other_job = CredentialsOf(0);
  wrong_token.token = SessionToken::Random();
  other_job.self.job = 2;
  const std::vector<std::byte> payload = PatternOf(1, 100'000);
  std::vector<absl::Status> sent;
  for (const LinkCredentials& credentials : {wrong_token, other_job}) {
    const PeerId peer = client.Connect(server, credentials);
    for (size_t size : {0, 100, 100'000}) {
      client->Send(peer, HeaderOf(1, size), absl::MakeConstSpan(payload).first(size),
                   [&](const absl::Status& status) { sent.push_back(status); });
    }
  }
  ASSERT_TRUE(ProgressUntil({client.get(), server.get()},
                            [&] { return client_box.losses.size() == 2 && sent.size() == 6; }));
  const absl::Status expected = absl::PermissionDeniedError(
      "not let in: no such session is open there, or its token differs");
  for (const auto& [peer, why] : client_box.losses) EXPECT_EQ(why, expected);
  for (const absl::Status& status : sent) EXPECT_EQ(status, expected);
  EXPECT_EQ(server->refused_joins(), 2);
  EXPECT_TRUE(server_box.joined.empty());
  EXPECT_TRUE(server_box.messages.empty());

  client.Connect(server);
  EXPECT_TRUE(
      ProgressUntil({client.get(), server.get()}, [&] { return !server_box.joined.empty(); }));
}

TEST(UcxLinkTest, AClosedSessionAcceptsNoPeerAndKeepsConnectedOnes) {
  Postbox client_box, server_box;
  Station client(client_box), server(server_box);
  const PeerId in = client.Connect(server);
  ASSERT_TRUE(
      ProgressUntil({client.get(), server.get()}, [&] { return !server_box.joined.empty(); }));
  server->CloseSession(1, 1);
  const PeerId late = client.Connect(server);
  client->Send(in, HeaderOf(1, 0), {}, nullptr);
  ASSERT_TRUE(ProgressUntil({client.get(), server.get()}, [&] {
    return !server_box.messages.empty() && !client_box.losses.empty();
  }));
  EXPECT_EQ(client_box.losses[0].first, late);
  EXPECT_EQ(server_box.joined.size(), 1u);
}

TEST(UcxLinkTest, ADisconnectIsReportedToTheOtherSideAfterTheMessages) {
  const std::vector<std::byte> payload = PatternOf(1, 100'000);
  for (const bool connector_goes : {true, false}) {
    Postbox client_box, server_box;
    Station client(client_box), server(server_box);
    const PeerId to_server = client.Connect(server);
    ASSERT_TRUE(
        ProgressUntil({client.get(), server.get()}, [&] { return !server_box.joined.empty(); }));
    const PeerId to_client = server_box.joined[0].first;
    Station& goes = connector_goes ? client : server;
    Postbox& stays_box = connector_goes ? server_box : client_box;
    const PeerId peer = connector_goes ? to_server : to_client;
    int dones = 0;
    for (size_t size : {100'000, 100, 0, 8000}) {
      goes->Send(peer, HeaderOf(1, size), absl::MakeConstSpan(payload).first(size),
                 [&](const absl::Status& status) { dones += status.ok() ? 1 : 0; });
    }
    ASSERT_TRUE(ProgressUntil({client.get(), server.get()}, [&] { return dones == 4; }));

    goes->Disconnect(peer);

    ASSERT_TRUE(
        ProgressUntil({client.get(), server.get()}, [&] { return !stays_box.losses.empty(); }));
    EXPECT_EQ(stays_box.messages.size(), 4u);
    EXPECT_EQ(stays_box.losses[0].first, connector_goes ? to_client : to_server);
    EXPECT_EQ(stays_box.losses[0].second.code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(client_box.losses.size() + server_box.losses.size() == 1)
        << "the disconnecting side gets no PeerLost";
  }
}

TEST(UcxLinkTest, APeerThatDisconnectsBeforeItIsAcceptedIsLostToTheOther) {
  Postbox client_box, server_box;
  Station client(client_box), server(server_box);
  int dones = 0;
  const PeerId peer = client.Connect(server);
  client->Send(peer, HeaderOf(1, 0), {}, [&](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    ++dones;
  });
  client->Disconnect(peer);
  ASSERT_TRUE(ProgressUntil({client.get(), server.get()}, [&] {
    return dones == 1 && server_box.losses.size() == server_box.joined.size();
  }));
  EXPECT_TRUE(server_box.messages.empty());
  EXPECT_TRUE(client_box.losses.empty());
}

TEST(UcxLinkTest, ATransportThatConnectsToItselfHasTwoPeers) {
  Postbox postbox;
  Station station(postbox);
  const PeerId out = station.Connect(station);
  ASSERT_TRUE(ProgressUntil({station.get()}, [&] { return !postbox.joined.empty(); }));
  const PeerId in = postbox.joined[0].first;
  EXPECT_NE(in, out);
  const std::vector<std::byte> payload = PatternOf(1, 100'000);
  station->Send(out, HeaderOf(1, payload.size()), payload, nullptr);
  ASSERT_TRUE(ProgressUntil({station.get()}, [&] { return postbox.messages.size() == 1; }));
  EXPECT_EQ(postbox.messages[0].from, in);
  station->Send(in, HeaderOf(2, payload.size()), payload, nullptr);
  ASSERT_TRUE(ProgressUntil({station.get()}, [&] { return postbox.messages.size() == 2; }));
  EXPECT_EQ(postbox.messages[1].from, out);
  station->Disconnect(out);
  ASSERT_TRUE(ProgressUntil({station.get()}, [&] { return !postbox.losses.empty(); }));
  EXPECT_EQ(postbox.losses[0].first, in);
}

// ---- Large payloads of several senders.

TEST(UcxTurnsTest, SendersAreServedInTurnsWhicheverCameFirst) {
  constexpr int kMessages = 16;
  Postbox receiver_box, unused;
  Station receiver(receiver_box), first(unused), second(unused);
  const std::vector<std::byte> payload = PatternOf(1, 1 << 20);
  std::array<int, 3> arrived = {0, 0, 0};
  receiver_box.on_message = [&](const Postbox::Message& message) {
    ++arrived[message.header.chunk];
    EXPECT_TRUE(message.payload.empty() || message.payload == absl::MakeConstSpan(payload));
  };
  const PeerId from_first = first.Connect(receiver), from_second = second.Connect(receiver);
  first->Send(from_first, HeaderOf(2, 0), {}, nullptr);
  second->Send(from_second, HeaderOf(2, 0), {}, nullptr);
  ASSERT_TRUE(ProgressUntil({receiver.get(), first.get(), second.get()},
                            [&] { return receiver_box.messages.size() == 2; }));
  for (int i = 0; i < kMessages; ++i) {
    first->Send(from_first, HeaderOf(0, payload.size()), payload, nullptr);
  }
  for (int i = 0; i < kMessages; ++i) {
    second->Send(from_second, HeaderOf(1, payload.size()), payload, nullptr);
  }
  ASSERT_TRUE(ProgressUntil({receiver.get(), first.get(), second.get()},
                            [&] { return arrived[1] == kMessages / 2; }));
  EXPECT_LE(arrived[0], kMessages / 2 + 5) << "four may be in progress";
  ASSERT_TRUE(ProgressUntil({receiver.get(), first.get(), second.get()},
                            [&] { return arrived[0] + arrived[1] == 2 * kMessages; }));
}

TEST(UcxTurnsTest, ASenderThatIsGoneBeforeItsTurnHarmsNoOther) {
  constexpr int kMessages = 16;
  Postbox receiver_box, unused;
  Station receiver(receiver_box), dying(unused), living(unused);
  const std::vector<std::byte> payload = PatternOf(2, 1 << 20);
  const PeerId from_dying = dying.Connect(receiver);
  for (int i = 0; i < kMessages; ++i) {
    dying->Send(from_dying, HeaderOf(0, payload.size()), payload, nullptr);
  }
  ASSERT_TRUE(
      ProgressUntil({receiver.get(), dying.get()}, [&] { return !receiver_box.messages.empty(); }));
  dying.reset();
  const PeerId from_living = living.Connect(receiver);
  int of_living = 0;
  receiver_box.on_message = [&](const Postbox::Message& message) {
    of_living += static_cast<int>(message.header.chunk);
  };
  for (int i = 0; i < kMessages; ++i) {
    living->Send(from_living, HeaderOf(1, payload.size()), payload, nullptr);
  }
  EXPECT_TRUE(ProgressUntil({receiver.get(), living.get()}, [&] {
    return of_living == kMessages && !receiver_box.losses.empty();
  }));
}

// Counts the payloads that were placed and neither received nor lost yet.
class Accounts : public Postbox {
 public:
  PayloadPlace PlacePayload(PeerId from, const WireHeader& header) override {
    EXPECT_FALSE(disconnects);
    ++placed;
    const PayloadPlace place = Postbox::PlacePayload(from, header);
    places_.push_back(place.memory);
    return place;
  }
  void Received(PeerId from, const WireHeader& header, absl::Span<const std::byte> payload,
                PayloadLease lease) override {
    if (!payload.empty()) --placed;
    EXPECT_TRUE(losses.empty()) << "a payload of a peer that was reported as lost";
    Postbox::Received(from, header, payload, std::move(lease));
  }
  void PayloadLost(PeerId from, const WireHeader& header) override {
    --placed;
    EXPECT_TRUE(losses.empty()) << "a payload of a peer that was reported as lost";
    Postbox::PayloadLost(from, header);
  }

  absl::Span<const std::byte> first_place() const { return places_[0]; }
  // Returns copies of all memory that was ever placed.
  std::vector<std::vector<std::byte>> CopyOfMemory() const {
    std::vector<std::vector<std::byte>> copies;
    for (absl::Span<const std::byte> place : places_) {
      copies.emplace_back(place.begin(), place.end());
    }
    return copies;
  }

  int placed = 0;
  // Set while the receiver disconnects: it must not be asked for places then.
  bool disconnects = false;

 private:
  std::vector<absl::Span<std::byte>> places_;
};

TEST(UcxTurnsTest, EveryPayloadWithAPlaceIsReceivedOrLostBeforeItsPeerIs) {
  constexpr int kMessages = 16;
  for (const bool dies : {true, false}) {
    Accounts accounts;
    Postbox unused;
    Station receiver(accounts), sender(unused);
    const std::vector<std::byte> payload = PatternOf(2, 1 << 20);
    const PeerId peer = sender.Connect(receiver);
    for (int i = 0; i < kMessages; ++i) {
      sender->Send(peer, HeaderOf(0, payload.size()), payload, nullptr);
    }
    ASSERT_TRUE(ProgressUntil({receiver.get(), sender.get()}, [&] { return accounts.placed > 4; }));
    if (dies) {
      sender.reset();
      ASSERT_TRUE(ProgressUntil({receiver.get()}, [&] { return !accounts.losses.empty(); }));
      EXPECT_FALSE(accounts.lost_payloads.empty());
    } else {
      sender->Disconnect(peer);
      ASSERT_TRUE(
          ProgressUntil({receiver.get(), sender.get()}, [&] { return !accounts.losses.empty(); }));
    }
    EXPECT_EQ(accounts.placed, 0);
  }
}

TEST(UcxTurnsTest, NothingIsWrittenForADisconnectedPeerAnyMore) {
  constexpr int kMessages = 8;
  Accounts accounts;
  Postbox sender_box;
  Station receiver(accounts), sender(sender_box);
  const std::vector<std::byte> payload = PatternOf(2, 8 << 20);
  const PeerId peer = sender.Connect(receiver);
  for (int i = 0; i < kMessages; ++i) {
    sender->Send(peer, HeaderOf(0, payload.size()), payload, nullptr);
  }
  ASSERT_TRUE(ProgressUntil({receiver.get(), sender.get()}, [&] {
    return accounts.placed > 0 && accounts.first_place()[100] == payload[100];
  }));
  ASSERT_TRUE(accounts.messages.empty()) << "the payload is being written";

  const auto start = std::chrono::steady_clock::now();
  receiver->Disconnect(accounts.joined[0].first);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  const std::vector<std::vector<std::byte>> before = accounts.CopyOfMemory();

  ASSERT_TRUE(
      ProgressUntil({receiver.get(), sender.get()}, [&] { return !sender_box.losses.empty(); }));
  EXPECT_TRUE(accounts.CopyOfMemory() == before);
  EXPECT_TRUE(accounts.messages.empty());
  EXPECT_TRUE(accounts.lost_payloads.empty());
  EXPECT_TRUE(accounts.losses.empty());
}

TEST(UcxTurnsTest, APayloadThatArrivesDuringADisconnectIsPlacedLater) {
  Accounts accounts;
  Postbox unused;
  // Declared before the stations: `leaving` may still send the payload when it is destroyed.
  const std::vector<std::byte> payload = PatternOf(2, 8 << 20);
  Station receiver(accounts), leaving(unused), staying(unused);
  const PeerId from_leaving = leaving.Connect(receiver);
  ASSERT_TRUE(
      ProgressUntil({receiver.get(), leaving.get()}, [&] { return !accounts.joined.empty(); }));
  const PeerId from_staying = staying.Connect(receiver);
  staying->Send(from_staying, HeaderOf(0, 0), {}, nullptr);
  ASSERT_TRUE(
      ProgressUntil({receiver.get(), staying.get()}, [&] { return !accounts.messages.empty(); }));
  leaving->Send(from_leaving, HeaderOf(0, payload.size()), payload, nullptr);
  ASSERT_TRUE(ProgressUntil({receiver.get(), leaving.get()}, [&] { return accounts.placed > 0; }));
  // The receiver makes no progress here, so these messages wait in its sockets until Disconnect().
  for (size_t size : {100, 0, 100'000}) {
    staying->Send(from_staying, HeaderOf(1, size), absl::MakeConstSpan(payload).first(size),
                  nullptr);
  }

  accounts.disconnects = true;
  receiver->Disconnect(accounts.joined[0].first);
  accounts.disconnects = false;

  ASSERT_TRUE(ProgressUntil({receiver.get(), staying.get()},
                            [&] { return accounts.messages.size() == 4; }));
  for (const Postbox::Message& message : accounts.messages) {
    EXPECT_EQ(message.from, accounts.joined[1].first);
    EXPECT_TRUE(message.payload == absl::MakeConstSpan(payload).first(message.payload.size()));
  }
}

// ---- Between processes.

class EchoTest : public testing::Test {
 protected:
  EchoTest() {
    auto peer = transport_->Connect(absl::HexStringToBytes(child_.ReadLine()), CredentialsOf(0));
    CHECK(peer.ok()) << peer.status();
    peer_ = *peer;
  }

  ChildProcess child_{"--echo"};
  Postbox postbox_;
  Station transport_{postbox_};
  PeerId peer_;
};

TEST_F(EchoTest, MessagesOfEverySizeComeBackComplete) {
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
  EXPECT_TRUE(absl::StrContains(transport_->Describe(peer_).network, "tcp"));
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

TEST_F(EchoTest, AKilledPeerIsLostWithinSecondsAndPendingSendsEnd) {
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

TEST(UcxTransportTest, LoopbackAloneIsEnoughNetwork) {
  ChildProcess child("--loopback");
  const int status = child.Wait();
  if (status == kSkipped) GTEST_SKIP() << "no network namespaces for this user here";
  EXPECT_EQ(status, 0);
}

// ---- Invalid bytes.

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

TEST(UcxTransportTest, RandomBytesAtTheDataPortDoNoHarm) {
  Postbox a_box, b_box;
  Station a(a_box), b(b_box);
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

  const PeerId to_b = a.Connect(b);
  const std::vector<std::byte> payload = PatternOf(1, 1'000'000);
  for (uint32_t i = 1; i <= 20; ++i) {
    a->Send(to_b, HeaderOf(i, payload.size()), payload, nullptr);
    ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return b_box.messages.size() == i; }))
        << "seed " << seed;
  }
  EXPECT_TRUE(a_box.losses.empty());
  EXPECT_TRUE(b_box.losses.empty());
}

// A peer that speaks UCX and sends messages that no Muster process sends.
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
        reinterpret_cast<const ucp_address_t*>(address.data() + 8);  // skips our envelope
    endpoint.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    CHECK_EQ(ucp_ep_create(worker_, &endpoint, &endpoint_), UCS_OK);
  }
  ~Forger() {
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }

  // Calls `meanwhile` until the message is sent.
  template <typename Meanwhile>
  void Send(unsigned id, absl::Span<const std::byte> header, absl::Span<const std::byte> payload,
            Meanwhile meanwhile) {
    ucp_request_param_t param{};
    void* request = ucp_am_send_nbx(endpoint_, id, header.data(), header.size(), payload.data(),
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

TEST(UcxTransportTest, MalformedAndStrayMessagesAreDroppedAndCounted) {
  Postbox postbox, peer_box;
  Station station(postbox), peer(peer_box);
  Forger forger(station->address());
  auto progress = [&] { station->Progress(); };
  const std::vector<std::byte> large = PatternOf(1, 500'000);
  const auto small = absl::MakeConstSpan(large).first(100);
  const auto with_tag = [](const WireHeader& header) {
    const auto encoded = EncodeHeader(header);
    std::vector<std::byte> bytes(encoded.begin(), encoded.end());
    bytes.resize(80, std::byte{7});  // of an unknown link
    return bytes;
  };
  const std::vector<std::byte> good = with_tag(HeaderOf(1, small.size()));
  auto flipped = good;
  flipped[30] ^= std::byte{1};

  forger.Send(0, {}, small, progress);
  forger.Send(0, absl::MakeConstSpan(good).first(10), small, progress);
  forger.Send(0, absl::MakeConstSpan(good).first(64), small, progress);
  forger.Send(0, absl::MakeConstSpan(large).first(1000), small, progress);
  forger.Send(0, flipped, small, progress);
  // The length does not match.
  forger.Send(0, good, absl::MakeConstSpan(small).first(99), progress);
  forger.Send(0, good, {}, progress);
  forger.Send(0, flipped, large, progress);  // large enough to be fetched from the sender
  ASSERT_TRUE(ProgressUntil({station.get()}, [&] { return station->malformed_messages() == 8; }));
  EXPECT_EQ(station->stray_messages(), 0);

  forger.Send(0, good, small, progress);
  forger.Send(0, with_tag(HeaderOf(1, large.size())), large, progress);
  ASSERT_TRUE(ProgressUntil({station.get()}, [&] { return station->stray_messages() == 2; }));

  const PeerId to_station = peer.Connect(station);
  peer->Send(to_station, HeaderOf(1, small.size()), small, nullptr);
  ASSERT_TRUE(
      ProgressUntil({station.get(), peer.get()}, [&] { return postbox.messages.size() == 1; }));
  EXPECT_EQ(station->malformed_messages(), 8);
  EXPECT_TRUE(postbox.messages[0].payload == small);
}

TEST(UcxTransportTest, ForgedJoinsAndControlsAreRefusedAndEndNoLink) {
  constexpr unsigned kJoin = 1, kControl = 2;
  Postbox postbox, peer_box;
  Station station(postbox), peer(peer_box);
  const PeerId to_station = peer.Connect(station);
  ASSERT_TRUE(ProgressUntil({station.get(), peer.get()}, [&] { return !postbox.joined.empty(); }));
  Forger forger(station->address());
  auto progress = [&] { station->Progress(); };
  std::vector<std::byte> join(72);
  join[16] = join[24] = join[32] = std::byte{1};  // a worker of job 1, generation 1
  const std::vector<std::byte> large = PatternOf(1, 500'000);
  const auto address = absl::MakeConstSpan(large).first(300);
  forger.Send(kJoin, join, address, progress);  // without a proof
  forger.Send(kJoin, join, {}, progress);
  ASSERT_TRUE(ProgressUntil({station.get()}, [&] { return station->refused_joins() == 2; }));
  EXPECT_EQ(station->malformed_messages(), 0);
  forger.Send(kJoin, absl::MakeConstSpan(join).first(71), address, progress);
  forger.Send(kJoin, join, large, progress);  // too long for an address
  join[33] = std::byte{1};                    // an unknown role
  forger.Send(kJoin, join, address, progress);
  ASSERT_TRUE(ProgressUntil({station.get()}, [&] { return station->malformed_messages() == 3; }));
  for (uint8_t kind = 0; kind < 6; ++kind) {
    std::vector<std::byte> control(72);
    control[16] = std::byte{kind};
    forger.Send(kControl, control, {}, progress);
  }
  ASSERT_TRUE(ProgressUntil({station.get()}, [&] { return station->stray_messages() == 6; }));
  forger.Send(kControl, absl::MakeConstSpan(join).first(20), {}, progress);
  forger.Send(kControl, join, address, progress);
  ASSERT_TRUE(ProgressUntil({station.get()}, [&] { return station->malformed_messages() == 5; }));

  peer->Send(to_station, HeaderOf(1, 0), {}, nullptr);
  ASSERT_TRUE(
      ProgressUntil({station.get(), peer.get()}, [&] { return postbox.messages.size() == 1; }));
  EXPECT_EQ(postbox.joined.size(), 1u);
  EXPECT_TRUE(postbox.losses.empty());
}

// ---- MakeRdmaBackend()

TEST(UcxTransportTest, RdmaOnlyOpensNoTcpSocketAndReportsWhatIsMissing) {
  const std::unique_ptr<EventLoop> loop = *EventLoop::Create();
  const absl::StatusOr<std::unique_ptr<TransportBackend>> transport = MakeRdmaBackend(loop.get());
  EXPECT_TRUE(ListeningPortsOfThisProcess().empty());
  if (transport.ok()) GTEST_SKIP() << "there is RDMA here";
  EXPECT_EQ(transport.status().code(), absl::StatusCode::kUnavailable);
  for (const char* hint : {"ucx_info -d", "rdma-core", "/dev/infiniband", "locked memory"}) {
    EXPECT_TRUE(absl::StrContains(transport.status().message(), hint)) << transport.status();
  }
}

TEST(UcxTransportTest, UcxTlsInTheEnvironmentDoesNotEnableTcp) {
  for (const char* networks : {"tcp", "all", "^rc", "rc,tcp", ""}) {
    setenv("UCX_TLS", networks, /*overwrite=*/1);
    const std::unique_ptr<EventLoop> loop = *EventLoop::Create();
    const auto transport = MakeRdmaBackend(loop.get());
    EXPECT_TRUE(ListeningPortsOfThisProcess().empty()) << networks;
  }
  unsetenv("UCX_TLS");
}

}  // namespace
}  // namespace muster::ucx_transport_test

int main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "--echo") return muster::ucx_transport_test::Echo();
  if (role == "--loopback") return muster::ucx_transport_test::MeetOnLoopbackOnly();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
