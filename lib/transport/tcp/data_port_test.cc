#include "lib/transport/tcp/data_port.h"

#include <dirent.h>
#include <linux/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/transport/core/file_descriptor.h"
#include "lib/transport/session/session.h"
#include "lib/transport/session/session_handshake.h"
#include "lib/transport/tcp/tcp_socket.h"

namespace muster::data_port_test {
namespace {

using UnauthenticatedPeer = DataPort::UnauthenticatedPeer;
using Bytes = std::vector<std::byte>;

int OpenDescriptors() {
  DIR* directory = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

FileDescriptor SocketAt(const char* host) {
  FileDescriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = SocketAddress::Numeric(host, 0);
  EXPECT_EQ(bind(made.get(), address->data(), address->size()), 0);
  return made;
}

// A blocking connection to the port.
class Visitor {
 public:
  explicit Visitor(const DataPort& port)
      : Visitor(port, FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))) {}
  Visitor(const DataPort& port, FileDescriptor made) : socket_(std::move(made)) {
    SetPatience(std::chrono::seconds(20));
    const auto address = SocketAddress::Numeric("127.0.0.1", port.port());
    EXPECT_EQ(connect(socket_.get(), address->data(), address->size()), 0);
  }

  void SetPatience(std::chrono::milliseconds patience) const {
    const timeval limit{.tv_sec = patience.count() / 1000,
                        .tv_usec = patience.count() % 1000 * 1000};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  void Say(absl::Span<const std::byte> bytes) const {
    send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void Say(absl::string_view text) const {
    Say({reinterpret_cast<const std::byte*>(text.data()), text.size()});
  }
  // Returns all bytes until the port hangs up.
  Bytes HearAll() const {
    Bytes heard;
    std::byte byte;
    while (recv(socket_.get(), &byte, 1, 0) == 1) heard.push_back(byte);
    return heard;
  }
  // Returns fewer bytes if the port hangs up, or the patience ends, before `size` bytes.
  Bytes Hear(size_t size) const {
    Bytes heard(size);
    if (size == 0) return heard;
    const ssize_t got = recv(socket_.get(), heard.data(), size, MSG_WAITALL);
    heard.resize(std::max<ssize_t>(0, got));
    return heard;
  }
  // Runs the handshake until it is accepted or refused.
  void Handshake(HandshakeConnector& handshake) const {
    while (true) {
      Say(handshake.TakeReply());
      if (handshake.wants() == 0) return;
      const Bytes heard = Hear(handshake.wants());
      if (heard.empty()) return;
      handshake.Take(heard);
    }
  }

 private:
  FileDescriptor socket_;
};

class DataPortTest : public testing::Test {
 protected:
  DataPortTest() { Open({}); }

  void Open(DataPortOptions options) {
    listener_ = nullptr;
    options.bind_host = "127.0.0.1";
    auto port = DataPort::Open(options);
    ASSERT_TRUE(port.ok()) << port.status();
    port_ = *std::move(port);
    listener_ = port_->MakeListener([this] {
      absl::MutexLock lock(&mu_);
      ++wakes_;
    });
    listener_->OpenSession(1, 1, token_);
  }

  HandshakeConnector MakeHandshake() const { return MakeHandshake(token_); }
  HandshakeConnector MakeHandshake(const SessionToken& token, uint64_t job = 1) const {
    return HandshakeConnector({.who = {.job = job, .generation = 1, .index = 5},
                               .port = port_->id(),
                               .transport = listener_->number()},
                              token, DataSecurity::kAuth);
  }

  DataPort::Listener::News AwaitNews() {
    auto woken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return wakes_ > 0; };
    {
      absl::MutexLock lock(&mu_);
      EXPECT_TRUE(AwaitFor(&mu_, absl::Condition(&woken), absl::Seconds(20)));
      wakes_ = 0;
    }
    return listener_->Take();
  }

  // Waits for the accepted connection.
  DataPort::Member TakeMember() {
    DataPort::Listener::News news = AwaitNews();
    EXPECT_EQ(news.members.size(), 1u);
    return news.members.empty() ? DataPort::Member() : std::move(news.members[0]);
  }

  void ExpectTheHonestToBeLetIn() {
    const Visitor visitor(*port_);
    HandshakeConnector handshake = MakeHandshake();
    visitor.Handshake(handshake);
    EXPECT_TRUE(handshake.let_in()) << handshake.fault();
    if (handshake.let_in()) TakeMember();
  }

  void AwaitUnauthenticatedPeers(UnauthenticatedPeer why, int64_t count) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (port_->unauthenticated_peers(why) < count && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    EXPECT_EQ(port_->unauthenticated_peers(why), count);
  }

  const SessionToken token_ = SessionToken::Random();
  absl::Mutex mu_;
  int wakes_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<DataPort> port_;
  std::unique_ptr<DataPort::Listener> listener_;
};

TEST_F(DataPortTest, AMemberIsHandedOverWithTheBytesAfterTheHandshake) {
  const Visitor visitor(*port_);
  HandshakeConnector handshake = MakeHandshake();
  visitor.Handshake(handshake);
  ASSERT_TRUE(handshake.let_in()) << handshake.fault();
  visitor.Say("the first message");
  const DataPort::Member member = TakeMember();
  EXPECT_EQ(member.hello.who,
            (LinkIdentity{.job = 1, .generation = 1, .role = LinkRole::kWorker, .index = 5}));
  EXPECT_EQ(member.tls_key, handshake.TlsKey());
  EXPECT_FALSE(member.checksums) << "over loopback";
  std::array<char, 17> text;
  // The socket is nonblocking, so the loop polls until the whole text has arrived.
  ssize_t size = 0;
  while ((size = recv(member.socket.get(), text.data(), text.size(), MSG_PEEK)) < 17) {
  }
  EXPECT_EQ(absl::string_view(text.data(), text.size()), "the first message");
  EXPECT_EQ(port_->members(), 1);
  EXPECT_EQ(port_->unauthenticated_peers(), 0);
}

TEST_F(DataPortTest, AHandshakeMayArriveByteByByte) {
  const Visitor visitor(*port_);
  HandshakeConnector handshake = MakeHandshake();
  while (true) {
    for (const std::byte byte : handshake.TakeReply()) visitor.Say({&byte, 1});
    if (handshake.wants() == 0) break;
    const Bytes heard = visitor.Hear(handshake.wants());
    ASSERT_FALSE(heard.empty());
    handshake.Take(heard);
  }
  EXPECT_TRUE(handshake.let_in()) << handshake.fault();
  TakeMember();
}

TEST_F(DataPortTest, APeerThatDoesNotProveAnOpenSessionIsRefused) {
  LinkHello elsewhere{.who = {.job = 1, .generation = 1}, .port = port_->id(), .transport = 99};
  LinkHello other_port{.who = {.job = 1, .generation = 1},
                       .port = port_->id() + 1,
                       .transport = listener_->number()};
  int64_t turned_away = 0;
  for (HandshakeConnector handshake :
       {MakeHandshake(SessionToken::Random()), MakeHandshake(token_, /*job=*/2),
        HandshakeConnector(elsewhere, token_, DataSecurity::kAuth),
        HandshakeConnector(other_port, token_, DataSecurity::kAuth)}) {
    const Visitor visitor(*port_);
    visitor.Handshake(handshake);
    EXPECT_EQ(handshake.fault(), NotLetIn());
    // A real attacker does not give up, but answers something.
    const Bytes nonsense(SessionHandshake::kProofBytes);
    visitor.Say(nonsense);
    EXPECT_EQ(visitor.HearAll().size(), SessionHandshake::kVerdictBytes);
    EXPECT_EQ(port_->unauthenticated_peers(UnauthenticatedPeer::kNotProven), ++turned_away);
  }
  EXPECT_FALSE(listener_->HasNews());
  ExpectTheHonestToBeLetIn();
}

// A member checks first: it never proves anything to a port that has not proved its own identity.
TEST_F(DataPortTest, AnUnknownSessionCountsAsNotProvenAndAnotherTokenAsHungUp) {
  {
    HandshakeConnector handshake = MakeHandshake(token_, /*job=*/2);
    Visitor(*port_).Handshake(handshake);
    AwaitUnauthenticatedPeers(UnauthenticatedPeer::kNotProven, 1);
  }
  {
    HandshakeConnector handshake = MakeHandshake(SessionToken::Random());
    Visitor(*port_).Handshake(handshake);
    AwaitUnauthenticatedPeers(UnauthenticatedPeer::kHungUp, 1);
  }
  EXPECT_EQ(port_->unauthenticated_peers(), 2);
}

TEST_F(DataPortTest, ALinkThatOutlivedItsGenerationMayOpenMoreConnections) {
  listener_->OpenSession(1, 2, token_);
  const auto try_handshake = [this](uint32_t generation, uint32_t connection) {
    HandshakeConnector handshake({.who = {.job = 1, .generation = generation, .index = 5},
                                  .port = port_->id(),
                                  .transport = listener_->number(),
                                  .connection = connection},
                                 token_, DataSecurity::kAuth);
    Visitor(*port_).Handshake(handshake);
    return handshake.let_in();
  };
  EXPECT_FALSE(try_handshake(/*generation=*/1, /*connection=*/0));
  EXPECT_TRUE(try_handshake(/*generation=*/1, /*connection=*/1));
  EXPECT_FALSE(try_handshake(/*generation=*/3, /*connection=*/1));
  EXPECT_TRUE(try_handshake(/*generation=*/2, /*connection=*/0));
}

TEST_F(DataPortTest, AClosedSessionAcceptsNoPeer) {
  listener_->CloseSession(1, 1);
  const Visitor visitor(*port_);
  HandshakeConnector handshake = MakeHandshake();
  visitor.Handshake(handshake);
  EXPECT_EQ(handshake.fault(), NotLetIn());
}

TEST_F(DataPortTest, APeerThatSendsNoHelloIsHungUpOnWithoutAnAnswer) {
  const int before = OpenDescriptors();
  std::mt19937 random(7);
  int64_t count = 0;
  const auto offer = [&](absl::string_view bytes) {
    const Visitor visitor(*port_);
    visitor.Say(bytes);
    EXPECT_TRUE(visitor.HearAll().empty());
    EXPECT_EQ(port_->unauthenticated_peers(UnauthenticatedPeer::kNotMuster), ++count);
  };
  offer("GET / HTTP/1.1\r\nHost: ps\r\n\r\n");
  offer(absl::string_view("\x16\x03\x01\x00\xf4\x01\x00\x00\xf0\x03\x03", 11));  // TLS
  offer(
      absl::string_view("\xef\xbe\xfe\xca\x00\x00\x00\x00\x01\x00", 10));  // the first bytes of UCX
  for (int i = 0; i < 100; ++i) {
    std::string bytes(8 + random() % 300, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    offer(bytes);
  }
  ExpectTheHonestToBeLetIn();
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(DataPortTest, AReplayedHandshakeIsRefused) {
  Bytes recorded;
  {
    const Visitor visitor(*port_);
    HandshakeConnector handshake = MakeHandshake();
    while (true) {
      const auto reply = handshake.TakeReply();
      recorded.insert(recorded.end(), reply.begin(), reply.end());
      visitor.Say(reply);
      if (handshake.wants() == 0) break;
      handshake.Take(visitor.Hear(handshake.wants()));
    }
    ASSERT_TRUE(handshake.let_in());
    TakeMember();
  }
  const Visitor visitor(*port_);
  visitor.Say(recorded);
  const Bytes answer = visitor.HearAll();
  EXPECT_EQ(answer.size(), SessionHandshake::kChallengeBytes + SessionHandshake::kVerdictBytes);
  EXPECT_EQ(port_->unauthenticated_peers(UnauthenticatedPeer::kNotProven), 1);

  // The replay is also refused if any byte is changed.
  std::mt19937 random(11);
  for (int i = 0; i < 200; ++i) {
    Bytes changed = recorded;
    changed[random() % changed.size()] ^= static_cast<std::byte>(1 + random() % 255);
    changed.resize(random() % 3 == 0 ? random() % changed.size() : changed.size());
    const Visitor other(*port_);
    other.Say(changed);
  }
  ExpectTheHonestToBeLetIn();
  EXPECT_FALSE(listener_->HasNews());
  EXPECT_EQ(port_->members(), 2);
}

TEST_F(DataPortTest, IdleConnectionsKeepNoPeerOutAndTheOldestMustGo) {
  const int before = OpenDescriptors();
  {
    std::vector<std::unique_ptr<Visitor>> idle;
    for (int i = 0; i < DataPort::kHalfOpenMax + 40; ++i) {
      idle.push_back(std::make_unique<Visitor>(*port_));
      if (i % 2 == 0) idle.back()->Say("MUSA");
    }
    ExpectTheHonestToBeLetIn();
    AwaitUnauthenticatedPeers(UnauthenticatedPeer::kCrowdedOut, 41);
    EXPECT_TRUE(idle.front()->HearAll().empty()) << "the port hung up on it";
  }
  AwaitUnauthenticatedPeers(UnauthenticatedPeer::kHungUp, DataPort::kHalfOpenMax - 1);
  EXPECT_EQ(OpenDescriptors(), before);
}

// Connections from the address that fills all places go first, even if a peer at another address
// came earlier.
TEST_F(DataPortTest, IdleConnectionsDoNotCrowdOutPeersAtOtherAddresses) {
  const Visitor early(*port_);
  HandshakeConnector handshake = MakeHandshake();
  std::vector<std::unique_ptr<Visitor>> idle;
  for (int i = 0; i < 3 * DataPort::kHalfOpenMax; ++i) {
    idle.push_back(std::make_unique<Visitor>(*port_, SocketAt("127.0.0.2")));
  }
  AwaitUnauthenticatedPeers(UnauthenticatedPeer::kCrowdedOut, 2 * DataPort::kHalfOpenMax + 1);
  early.Handshake(handshake);
  EXPECT_TRUE(handshake.let_in()) << handshake.fault();
  TakeMember();
}

// All are at one address, as behind a shared gateway: connections that have named their session
// stay.
TEST_F(DataPortTest, IdleConnectionsDoNotCrowdOutMembersAtTheSameAddress) {
  const Visitor early(*port_);
  HandshakeConnector handshake = MakeHandshake();
  early.Say(handshake.TakeReply());
  handshake.Take(early.Hear(handshake.wants()));
  std::vector<std::unique_ptr<Visitor>> idle;
  for (int i = 0; i < 2 * DataPort::kHalfOpenMax; ++i) {
    idle.push_back(std::make_unique<Visitor>(*port_));
  }
  AwaitUnauthenticatedPeers(UnauthenticatedPeer::kCrowdedOut, DataPort::kHalfOpenMax + 1);
  early.Handshake(handshake);
  EXPECT_TRUE(handshake.let_in()) << handshake.fault();
  TakeMember();
}

// This happens when a job with many workers starts: all have sent a hello before the first is
// answered.
TEST_F(DataPortTest, MembersThatConnectAllAtOnceAreAllAccepted) {
  constexpr int kMembers = 2 * DataPort::kHalfOpenMax;  // the others wait in the kernel's queue
  std::vector<std::unique_ptr<Visitor>> visitors;
  std::vector<HandshakeConnector> handshakes;
  for (int i = 0; i < kMembers; ++i) {
    visitors.push_back(std::make_unique<Visitor>(*port_));
    handshakes.push_back(MakeHandshake());
    visitors[i]->Say(handshakes[i].TakeReply());
  }
  for (int i = 0; i < kMembers; ++i) {
    visitors[i]->Handshake(handshakes[i]);
    EXPECT_TRUE(handshakes[i].let_in()) << i << ": " << handshakes[i].fault();
  }
  EXPECT_EQ(port_->unauthenticated_peers(UnauthenticatedPeer::kCrowdedOut), 0);
}

TEST_F(DataPortTest, APeerThatTakesTooLongIsHungUpOn) {
  Open({.handshake_time_max = std::chrono::milliseconds(30)});
  const Visitor silent(*port_);
  EXPECT_TRUE(silent.HearAll().empty());
  EXPECT_EQ(port_->unauthenticated_peers(UnauthenticatedPeer::kTooSlow), 1);
}

TEST_F(DataPortTest, APeerWithAnotherSecurityIsToldOfThisOne) {
  Open({.security = DataSecurity::kEncrypt});
  const Visitor visitor(*port_);
  HandshakeConnector handshake = MakeHandshake();
  visitor.Handshake(handshake);
  EXPECT_TRUE(absl::IsFailedPrecondition(handshake.fault())) << handshake.fault();
  visitor.HearAll();
  EXPECT_EQ(port_->unauthenticated_peers(UnauthenticatedPeer::kDiffers), 1);
}

// While there is no descriptor, connections wait in the kernel's queue. They are accepted later.
TEST_F(DataPortTest, APortWithoutDescriptorsWaitsAndDoesNotSpin) {
  FileDescriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Visitor visitor(*port_, std::move(made));
  HandshakeConnector handshake = MakeHandshake();
  visitor.SetPatience(std::chrono::milliseconds(500));
  const clock_t busy = clock();
  visitor.Say(handshake.TakeReply());
  EXPECT_TRUE(visitor.Hear(handshake.wants()).empty());
  EXPECT_LT(clock() - busy, CLOCKS_PER_SEC / 4);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  visitor.SetPatience(std::chrono::seconds(20));
  visitor.Handshake(handshake);
  EXPECT_TRUE(handshake.let_in()) << handshake.fault();
  TakeMember();
}

TEST_F(DataPortTest, NamesAreResolvedOnAnotherThread) {
  listener_->Resolve(17, {.host = "localhost", .port = 99});
  const DataPort::Listener::News news = AwaitNews();
  ASSERT_EQ(news.resolved.size(), 1u);
  EXPECT_EQ(news.resolved[0].request, 17);
  ASSERT_TRUE(news.resolved[0].addresses.ok()) << news.resolved[0].addresses.status();
  EXPECT_TRUE(news.resolved[0].addresses->front().is_loopback());
  EXPECT_EQ(news.resolved[0].addresses->front().port(), 99);
}

TEST_F(DataPortTest, CancelledNamesAreNotResolved) {
  absl::Notification asked, answered;
  std::vector<std::string> names;  // used by the resolver's thread until it has ended
  Open({.resolve = [&](const std::string& host, uint16_t) {
    names.push_back(host);
    if (host == "slow") {
      asked.Notify();
      answered.WaitForNotification();
    }
    return absl::StatusOr<std::vector<SocketAddress>>(absl::UnavailableError(host));
  }});
  listener_->Resolve(1, {.host = "slow"});
  asked.WaitForNotification();
  {
    const auto other = port_->MakeListener([] {});
    other->Resolve(1, {.host = "requested by a destroyed listener"});
    listener_->Resolve(2, {.host = "cancelled"});
    listener_->Resolve(3, {.host = "wanted"});
    listener_->CancelResolve(2);
  }
  answered.Notify();
  std::vector<int64_t> heard;
  while (heard.size() < 2) {
    for (const DataPort::Resolved& resolved : AwaitNews().resolved) {
      heard.push_back(resolved.request);
    }
  }
  EXPECT_EQ(heard, (std::vector<int64_t>{1, 3}));
  listener_ = nullptr;
  port_ = nullptr;
  EXPECT_EQ(names, (std::vector<std::string>{"slow", "wanted"}));
}

TEST_F(DataPortTest, APortInUseIsSkippedInARange) {
  const uint16_t taken = port_->port();
  const DataPortOptions only{.bind_host = "127.0.0.1", .port_first = taken, .port_last = taken};
  const auto none = DataPort::Open(only);
  EXPECT_TRUE(absl::IsUnavailable(none.status())) << none.status();
  EXPECT_TRUE(absl::StrContains(none.status().message(), std::to_string(taken))) << none.status();
  const uint16_t first = std::min<uint16_t>(taken, 65000);
  const auto next = DataPort::Open({.bind_host = "127.0.0.1",
                                    .port_first = first,
                                    .port_last = static_cast<uint16_t>(first + 200)});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_GE((*next)->port(), first);
  EXPECT_NE((*next)->port(), taken);
}

TEST_F(DataPortTest, EndpointsAreWhereItListensOrIsAdvertised) {
  EXPECT_EQ(port_->endpoints(), (std::vector<Endpoint>{{"127.0.0.1", port_->port()}}));
  const auto named = DataPort::Open({.advertise_host = "ps-0.muster"});
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ((*named)->endpoints(), (std::vector<Endpoint>{{"ps-0.muster", (*named)->port()}}));
  const auto everywhere = DataPort::Open();
  ASSERT_TRUE(everywhere.ok()) << everywhere.status();
  const auto hosts = AddressesOfThisHost();
  for (const Endpoint& endpoint : (*everywhere)->endpoints()) {
    EXPECT_EQ(std::ranges::count(hosts, endpoint.host), 1) << endpoint.host;
  }
}

TEST_F(DataPortTest, APortThatNoHostCanReachIsNotOpened) {
  const std::vector<std::string> v6 = {"fd00::2"}, both = {"fd00::2", "192.0.2.2"};
  const SocketAddress v4_alone = SocketAddress::AnyV4(7000);
  const auto unfindable = DataPort::EndpointsOf({}, v4_alone, v6);
  EXPECT_TRUE(absl::IsUnavailable(unfindable.status())) << unfindable.status();
  EXPECT_TRUE(absl::StrContains(unfindable.status().message(), "fd00::2")) << unfindable.status();
  EXPECT_TRUE(absl::StrContains(unfindable.status().message(), "--advertise"));
  const auto found = DataPort::EndpointsOf({}, v4_alone, both);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, (std::vector<Endpoint>{{"192.0.2.2", 7000}}));
  EXPECT_TRUE(DataPort::EndpointsOf({}, SocketAddress::AnyV6(7000), v6).ok());

  const auto longer = DataPort::Open({.advertise_host = std::string(256, 'x')});
  EXPECT_TRUE(absl::IsUnavailable(longer.status())) << longer.status();
}

TEST(SocketAddressTest, AddressesOfBothKindsAreWrittenInUsualNotation) {
  EXPECT_EQ(SocketAddress::Numeric("192.0.2.2", 7000)->ToString(), "192.0.2.2:7000");
  EXPECT_EQ(SocketAddress::Numeric("fd00::2", 7000)->ToString(), "[fd00::2]:7000");
  EXPECT_EQ(SocketAddress::Numeric("::ffff:192.0.2.2", 7000)->ToString(), "192.0.2.2:7000");
  EXPECT_FALSE(SocketAddress::Numeric("ps-0", 7000).has_value());
  EXPECT_TRUE(SocketAddress::Numeric("127.1.2.3", 1)->is_loopback());
  EXPECT_TRUE(SocketAddress::Numeric("::ffff:127.0.0.1", 1)->is_loopback());
  EXPECT_TRUE(SocketAddress::Numeric("::1", 1)->is_loopback());
  EXPECT_FALSE(SocketAddress::Numeric("192.0.2.2", 1)->is_loopback());
}

TEST(SocketAddressTest, AddressesOfOneIpv6NetworkHaveOneSource) {
  auto source = [](const char* host) { return SocketAddress::Numeric(host, 7000)->source(); };
  EXPECT_EQ(source("fd00:1:2:3::4"), source("fd00:1:2:3:5:6:7:8"));
  EXPECT_NE(source("fd00:1:2:3::4"), source("fd00:1:2:4::4"));
  EXPECT_EQ(source("::ffff:192.0.2.2"), "192.0.2.2");
  EXPECT_NE(source("::ffff:192.0.2.2"), source("::ffff:192.0.2.3"));
}

TEST(HasVanishedTest, AMachineThatAnswersNothingForSecondsHasVanished) {
  tcp_info unacknowledged = {};
  unacknowledged.tcpi_unacked = 3;
  unacknowledged.tcpi_retransmits = 4;
  // Behind a closed window all sent bytes are acknowledged.
  tcp_info behind_a_closed_window = {};
  behind_a_closed_window.tcpi_probes = 2;
  for (tcp_info& silent : {std::ref(unacknowledged), std::ref(behind_a_closed_window)}) {
    silent.tcpi_last_ack_recv = 7'900;
    EXPECT_FALSE(HasVanished(silent));
    silent.tcpi_last_ack_recv = 8'000;
    EXPECT_TRUE(HasVanished(silent));
  }
}

TEST(HasVanishedTest, AMachineThatAnswersOrHasNothingToAnswerHasNotVanished) {
  tcp_info idle = {};
  idle.tcpi_last_ack_recv = 3'600'000;
  EXPECT_FALSE(HasVanished(idle));

  tcp_info sent_just_now = idle;
  sent_just_now.tcpi_unacked = 1;
  EXPECT_FALSE(HasVanished(sent_just_now));

  // The window has been closed for minutes, so probes are minutes apart. The last one is on its
  // way.
  tcp_info does_not_read = idle;
  does_not_read.tcpi_probes = 1;
  does_not_read.tcpi_backoff = 9;
  EXPECT_FALSE(HasVanished(does_not_read));

  tcp_info loses_packets = {};
  loses_packets.tcpi_unacked = 100;
  loses_packets.tcpi_retransmits = 2;
  loses_packets.tcpi_probes = 2;
  loses_packets.tcpi_last_ack_recv = 1'000;
  EXPECT_FALSE(HasVanished(loses_packets));
}

}  // namespace
}  // namespace muster::data_port_test
