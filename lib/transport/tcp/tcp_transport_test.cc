#include "lib/transport/tcp/tcp_transport.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/transport/core/address_envelope.h"
#include "lib/transport/core/crc32c.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/file_descriptor.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "lib/transport/session/session_handshake.h"
#include "lib/transport/tcp/data_port.h"
#include "lib/transport/tcp/tcp_socket.h"
#include "lib/transport/tcp/tls_stream.h"
#include "lib/transport/testing/postbox.h"

namespace muster::tcp_transport_test {
namespace {

std::shared_ptr<DataPort> OpenPort(DataPortOptions options = {.bind_host = "127.0.0.1"}) {
  auto port = DataPort::Open(std::move(options));
  EXPECT_TRUE(port.ok()) << port.status();
  return *std::move(port);
}

// Whether the bytes are equal. Faster than ==, which a sanitizer checks byte by byte.
bool Same(absl::Span<const std::byte> a, absl::Span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

class Inbox : public Postbox {
 public:
  PayloadPlace PlacePayload(PeerId from, const WireHeader& header) override {
    ++placed;
    return Postbox::PlacePayload(from, header);
  }
  void PeerJoined(PeerId peer, const LinkIdentity& who) override {
    if (on_joined) on_joined(peer);
    Postbox::PeerJoined(peer, who);
  }
  void PeerLost(PeerId peer, const absl::Status& why) override {
    payloads_lost_before_peer.push_back(lost_payloads.size());
    Postbox::PeerLost(peer, why);
  }
  int placed = 0;
  std::vector<size_t> payloads_lost_before_peer;
  std::function<void(PeerId)> on_joined;
};

// A process with one transport.
struct Station {
  explicit Station(std::shared_ptr<DataPort> at = OpenPort(), bool spin = false,
                   int connections = 1,
                   std::chrono::milliseconds attempt_time_max = std::chrono::seconds(5),
                   std::chrono::milliseconds record_time_max = std::chrono::minutes(1))
      : port(std::move(at)) {
    auto made_loop = EventLoop::Create({.regardless = spin});
    EXPECT_TRUE(made_loop.ok()) << made_loop.status();
    loop = *std::move(made_loop);
    auto made = TcpTransport::Create(loop.get(), {.port = port,
                                                  .connections = connections,
                                                  .attempt_time_max = attempt_time_max,
                                                  .record_time_max = record_time_max});
    EXPECT_TRUE(made.ok()) << made.status();
    transport = *std::move(made);
    transport->SetReceiver(&postbox);
    OpenTestSession(*transport);
  }

  PeerId Connect(const Station& to, uint32_t index = 3) {
    auto peer = transport->Connect(to.transport->address(), CredentialsOf(index));
    EXPECT_TRUE(peer.ok()) << peer.status();
    return *peer;
  }

  Inbox postbox;  // must outlive the transport
  std::shared_ptr<DataPort> port;
  std::unique_ptr<EventLoop> loop;
  std::unique_ptr<TcpTransport> transport;
};

template <typename Condition>
bool Until(Station& a, Station& b, const Condition& condition) {
  return ProgressUntil({a.transport.get(), b.transport.get()}, condition);
}

// A member that speaks the protocol by hand.
class Impostor {
 public:
  explicit Impostor(const Station& station, bool checksums = false, uint32_t connection = 0,
                    DataSecurity security = DataSecurity::kAuth,
                    const std::string& link = SessionToken::Random().ToBytes())
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto address = SocketAddress::Numeric("127.0.0.1", station.port->port());
    EXPECT_EQ(connect(socket_.get(), address->data(), address->size()), 0);
    TuneLinkSocket(socket_.get());
    LinkHello hello{.who = CredentialsOf(9).self,
                    .port = station.port->id(),
                    .connection = connection,
                    .checksums = checksums};
    std::memcpy(hello.link.data(), link.data(), link.size());
    HandshakeConnector handshake(hello, SessionToken(), security);
    while (!handshake.let_in()) {
      Say(handshake.TakeReply());
      std::array<std::byte, SessionHandshake::kHelloBytes> bytes;
      const ssize_t size = recv(socket_.get(), bytes.data(), handshake.wants(), MSG_WAITALL);
      EXPECT_GT(size, 0) << handshake.fault();
      if (size <= 0) return;
      handshake.Take(absl::MakeConstSpan(bytes).first(size));
    }
    if (security == DataSecurity::kEncrypt) {
      fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
      tls_.emplace(TlsStream::Side::kConnector, handshake.TlsKey(), socket_.get());
    }
  }

  // Continues the TLS handshake. Call it if the links are encrypted. Returns whether the other end
  // has also finished.
  bool Encrypt() {
    const TlsStream::Progress progress = tls_->Handshake();
    EXPECT_NE(progress, TlsStream::Progress::kFailed) << tls_->fault();
    return progress == TlsStream::Progress::kDone;
  }
  void SayEncrypted(absl::Span<const std::byte> bytes) {
    const iovec piece = {const_cast<std::byte*>(bytes.data()), bytes.size()};
    EXPECT_EQ(tls_->Write({&piece, 1}), bytes.size());
  }

  void Say(absl::Span<const std::byte> bytes) const {
    send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  bool HasHeard() const {
    std::byte byte;
    return recv(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
  }
  bool IsHungUpOn() const {
    std::byte byte;
    return recv(socket_.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }

 private:
  const FileDescriptor socket_;
  std::optional<TlsStream> tls_;
};

int OpenDescriptors() {
  DIR* directory = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

struct Setting {
  std::string name;
  DataPortOptions port;
  bool spin = false;
  int connections = 1;
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

class TcpLinkTest : public testing::TestWithParam<Setting> {
 protected:
  std::unique_ptr<Station> MakeStation() {
    return std::make_unique<Station>(OpenPort(GetParam().port), GetParam().spin,
                                     GetParam().connections);
  }
};

TEST_P(TcpLinkTest, MessagesOfEverySizeArriveInBothDirectionsOfOneLink) {
  auto a = MakeStation(), b = MakeStation();
  const PeerId to_b = a->Connect(*b);
  ASSERT_TRUE(Until(*a, *b, [&] { return !b->postbox.joined.empty(); }));
  EXPECT_EQ(b->postbox.joined[0].second, CredentialsOf(3).self);
  const PeerId to_a = b->postbox.joined[0].first;
  uint32_t number = 0;
  for (const size_t size : std::initializer_list<size_t>{0, 1, 63, 64, 4096, 16383, 16384, 16385,
                                                         65536, 65537, 70000, 1000003, 3 << 20}) {
    ++number;
    const std::vector<std::byte> payload = PatternOf(number, size);
    int dones = 0;
    const auto count = [&dones](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      ++dones;
    };
    a->transport->Send(to_b, HeaderOf(number, size), payload, count);
    b->transport->Send(to_a, HeaderOf(number, size), payload, count);
    ASSERT_TRUE(Until(*a, *b, [&] {
      return dones == 2 && a->postbox.messages.size() == number &&
             b->postbox.messages.size() == number;
    })) << size;
    for (const auto& [station, from] : {std::pair(a.get(), to_b), std::pair(b.get(), to_a)}) {
      const Postbox::Message& message = station->postbox.messages.back();
      EXPECT_EQ(message.from, from);
      EXPECT_EQ(message.header, HeaderOf(number, size));
      EXPECT_TRUE(Same(message.payload, payload)) << size;
    }
  }
}

TEST_P(TcpLinkTest, ManyMessagesOfManyPeersArriveOnceAndInOrder) {
  constexpr uint32_t kMessages = 100;
  auto server = MakeStation();
  std::vector<std::unique_ptr<Station>> clients;
  std::vector<PeerId> to_server;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(MakeStation());
    to_server.push_back(clients.back()->Connect(*server, i));
  }
  std::vector<std::vector<std::byte>> payloads;
  for (uint32_t i = 0; i < kMessages; ++i) {
    payloads.push_back(PatternOf(i, i % 10 == 0 ? 300'000 : i % 3 == 0 ? 20'000 : 37 * i % 5000));
  }
  uint32_t dones = 0;
  for (uint32_t i = 0; i < kMessages; ++i) {
    for (size_t c = 0; c < clients.size(); ++c) {
      WireHeader header = HeaderOf(i, payloads[i].size());
      header.rank = c;
      clients[c]->transport->Send(to_server[c], header, payloads[i],
                                  [&dones](const absl::Status& status) {
                                    EXPECT_TRUE(status.ok()) << status;
                                    ++dones;
                                  });
    }
  }
  ASSERT_TRUE(ProgressUntil(
      {server->transport.get(), clients[0]->transport.get(), clients[1]->transport.get(),
       clients[2]->transport.get()},
      [&] { return dones == 3 * kMessages && server->postbox.messages.size() >= 3 * kMessages; }));
  EXPECT_EQ(server->postbox.messages.size(), 3 * kMessages);
  std::vector<uint32_t> next(3);
  for (const Postbox::Message& message : server->postbox.messages) {
    EXPECT_EQ(message.header.chunk, next[message.header.rank]++);
    EXPECT_TRUE(Same(message.payload, payloads[message.header.chunk]));
  }
}

TEST_P(TcpLinkTest, ADroppedPayloadDoesNotStopTheNextOne) {
  auto a = MakeStation(), b = MakeStation();
  const PeerId to_b = a->Connect(*b);
  for (const size_t size : {100, 20'000, 3'000'000}) {
    b->postbox.messages.clear();
    b->postbox.refuse_payloads = true;
    const std::vector<std::byte> payload = PatternOf(size, size);
    a->transport->Send(to_b, HeaderOf(1, size), payload, nullptr);
    a->transport->Send(to_b, HeaderOf(2, 0), {}, nullptr);
    ASSERT_TRUE(Until(*a, *b, [&] { return !b->postbox.messages.empty(); }));
    b->postbox.refuse_payloads = false;
    a->transport->Send(to_b, HeaderOf(3, size), payload, nullptr);
    ASSERT_TRUE(Until(*a, *b, [&] { return b->postbox.messages.size() >= 2; }));
    EXPECT_EQ(b->postbox.messages[0].header.chunk, 2u);
    EXPECT_EQ(b->postbox.messages[1].header.chunk, 3u);
    EXPECT_TRUE(Same(b->postbox.messages[1].payload, payload));
  }
  EXPECT_TRUE(b->postbox.lost_payloads.empty());
}

TEST_P(TcpLinkTest, MessagesSentBeforeADisconnectArriveBeforeTheLoss) {
  auto a = MakeStation(), b = MakeStation();
  const PeerId to_b = a->Connect(*b);
  ASSERT_TRUE(Until(*a, *b, [&] { return !b->postbox.joined.empty(); }));
  const PeerId to_a = b->postbox.joined[0].first;
  const std::vector<std::byte> payload = PatternOf(1, 30'000);
  // Unread bytes at the disconnecting end would make its kernel reset the connection.
  const std::vector<std::byte> unread = PatternOf(2, 1000);
  b->transport->Send(to_a, HeaderOf(9, unread.size()), unread, nullptr);
  int dones = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    a->transport->Send(to_b, HeaderOf(i, payload.size()), payload,
                       [&dones](const absl::Status& status) { dones += status.ok(); });
  }
  ASSERT_TRUE(ProgressUntil({a->transport.get()}, [&] { return dones == 8; }));
  a->transport->Disconnect(to_b);
  ASSERT_TRUE(Until(*a, *b, [&] { return !b->postbox.losses.empty(); }));
  EXPECT_EQ(b->postbox.messages.size(), 8u);
  EXPECT_EQ(b->postbox.losses[0].first, to_a);
  EXPECT_TRUE(absl::IsUnavailable(b->postbox.losses[0].second)) << b->postbox.losses[0].second;
  EXPECT_TRUE(a->postbox.losses.empty()) << "the disconnecting side gets no callback";
}

TEST_P(TcpLinkTest, ASendInProgressEndsWithADisconnectAndItsReceiverIsTold) {
  auto a = MakeStation(), b = MakeStation();
  const PeerId to_b = a->Connect(*b);
  const std::vector<std::byte> payload = PatternOf(1, 12 << 20);
  std::vector<absl::Status> dones;
  a->transport->Send(to_b, HeaderOf(1, payload.size()), payload,
                     [&dones](const absl::Status& status) { dones.push_back(status); });
  ASSERT_TRUE(Until(*a, *b, [&] { return b->postbox.placed == 1; }));
  ASSERT_TRUE(dones.empty());
  a->transport->Disconnect(to_b);
  EXPECT_TRUE(dones.empty()) << "`done` was called from inside Disconnect";
  ASSERT_TRUE(Until(*a, *b, [&] { return !dones.empty() && !b->postbox.losses.empty(); }));
  EXPECT_TRUE(absl::IsCancelled(dones[0])) << dones[0];
  ASSERT_EQ(b->postbox.lost_payloads.size(), 1u);
  EXPECT_EQ(b->postbox.lost_payloads[0].second.chunk, 1u);
  EXPECT_TRUE(b->postbox.messages.empty());
}

TEST_P(TcpLinkTest, ADestroyedPeerIsReportedOnceAndSendsEndWithItsError) {
  auto a = MakeStation(), b = MakeStation();
  const PeerId to_b = a->Connect(*b);
  const std::vector<std::byte> payload = PatternOf(1, 12 << 20);
  std::vector<absl::Status> dones;
  const auto note = [&dones](const absl::Status& status) { dones.push_back(status); };
  a->transport->Send(to_b, HeaderOf(1, payload.size()), payload, note);
  a->transport->Send(to_b, HeaderOf(2, 0), {}, note);
  ASSERT_TRUE(Until(*a, *b, [&] { return !b->postbox.joined.empty(); }));
  b->transport.reset();
  ASSERT_TRUE(ProgressUntil({a->transport.get()},
                            [&] { return dones.size() == 2 && !a->postbox.losses.empty(); }));
  a->transport->Send(to_b, HeaderOf(3, 0), {}, note);
  EXPECT_EQ(dones.size(), 3u);
  for (const absl::Status& status : dones) EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  for (int i = 0; i < 10; ++i) a->transport->Progress();
  EXPECT_EQ(a->postbox.losses.size(), 1u);
}

TEST_P(TcpLinkTest, ATransportThatConnectsToItselfHasTwoPeers) {
  auto a = MakeStation();
  const PeerId out = a->Connect(*a);
  const std::vector<std::byte> payload = PatternOf(1, 100'000);
  a->transport->Send(out, HeaderOf(1, payload.size()), payload, nullptr);
  ASSERT_TRUE(ProgressUntil({a->transport.get()}, [&] { return !a->postbox.messages.empty(); }));
  ASSERT_EQ(a->postbox.joined.size(), 1u);
  EXPECT_NE(a->postbox.joined[0].first, out);
  EXPECT_EQ(a->postbox.messages[0].from, a->postbox.joined[0].first);
  a->transport->Send(a->postbox.joined[0].first, HeaderOf(2, 0), {}, nullptr);
  ASSERT_TRUE(ProgressUntil({a->transport.get()}, [&] { return a->postbox.messages.size() == 2; }));
  EXPECT_EQ(a->postbox.messages[1].from, out);
}

TEST_P(TcpLinkTest, TwoThreadsExchangeMessagesWithWaitOnly) {
  constexpr int kRounds = 300;
  auto a = MakeStation(), b = MakeStation();
  const PeerId to_b = a->Connect(*b);
  const std::vector<std::byte> payload = PatternOf(1, 40'000);
  b->postbox.on_message = [&](const Postbox::Message& message) {
    b->transport->Send(message.from, message.header, payload, nullptr);
  };
  std::jthread other([&](std::stop_token stop) {
    while (!stop.stop_requested()) {
      if (b->transport->Progress() == 0) b->transport->Wait(absl::Milliseconds(50));
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    a->transport->Send(to_b, HeaderOf(i, payload.size()), payload, nullptr);
    while (a->postbox.messages.size() <= i) {
      ASSERT_TRUE(a->postbox.losses.empty()) << a->postbox.losses[0].second;
      if (a->transport->Progress() == 0) a->transport->Wait(absl::InfiniteDuration());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, TcpLinkTest,
    testing::Values(
        Setting{"Auth", {.bind_host = "127.0.0.1"}},
        Setting{"AuthPolling", {.bind_host = "127.0.0.1"}, /*spin=*/true},
        Setting{"Checksums", {.bind_host = "127.0.0.1", .checksums = Checksums::kOn}},
        Setting{"None", {.bind_host = "127.0.0.1", .security = DataSecurity::kNone}},
        Setting{"Encrypt", {.bind_host = "127.0.0.1", .security = DataSecurity::kEncrypt}},
        Setting{"EncryptPolling",
                {.bind_host = "127.0.0.1", .security = DataSecurity::kEncrypt},
                /*spin=*/true},
        Setting{"Connections", {.bind_host = "127.0.0.1"}, /*spin=*/false, /*connections=*/3},
        Setting{"EncryptConnections",
                {.bind_host = "127.0.0.1", .security = DataSecurity::kEncrypt},
                /*spin=*/false,
                /*connections=*/3}),
    [](const auto& info) { return info.param.name; });

// The other tests use one kind of address, because the kind makes no difference to the messages.
TEST(TcpTransportTest, APeerIsFoundByAddressesOfBothKindsAndByName) {
  for (const DataPortOptions& options :
       {DataPortOptions{}, DataPortOptions{.bind_host = "::1"},
        DataPortOptions{.bind_host = "127.0.0.1", .advertise_host = "localhost"}}) {
    Station a(OpenPort(options)), b(OpenPort(options));
    const PeerId to_b = a.Connect(b);
    const std::vector<std::byte> payload = PatternOf(1, 100'000);
    a.transport->Send(to_b, HeaderOf(1, payload.size()), payload, nullptr);
    ASSERT_TRUE(Until(a, b, [&] { return !b.postbox.messages.empty(); }))
        << ToString(b.port->endpoints()[0]);
    EXPECT_TRUE(Same(b.postbox.messages[0].payload, payload));
  }
}

TEST(TcpTransportTest, AWrongTokenAndAnUnknownSessionAreRefusedWithOneText) {
  Station a, b;
  LinkCredentials unauthenticated_peer = CredentialsOf(1);
  unauthenticated_peer.token = SessionToken::Random();
  LinkCredentials lost = CredentialsOf(1);
  lost.self.generation = 2;
  for (const LinkCredentials& credentials : {unauthenticated_peer, lost}) {
    auto peer = a.transport->Connect(b.transport->address(), credentials);
    ASSERT_TRUE(peer.ok()) << peer.status();
    absl::Status done;
    a.transport->Send(*peer, HeaderOf(1, 0), {},
                      [&done](const absl::Status& status) { done = status; });
    a.postbox.losses.clear();
    ASSERT_TRUE(Until(a, b, [&] { return !a.postbox.losses.empty(); }));
    EXPECT_EQ(a.postbox.losses[0].first, *peer);
    EXPECT_TRUE(absl::IsPermissionDenied(a.postbox.losses[0].second));
    EXPECT_TRUE(absl::StrContains(a.postbox.losses[0].second.message(), NotLetIn().message()))
        << a.postbox.losses[0].second;
    EXPECT_EQ(done, a.postbox.losses[0].second);
  }
  EXPECT_TRUE(b.postbox.joined.empty());
}

TEST(TcpTransportTest, AClosedSessionAcceptsNoPeerAndKeepsConnectedOnes) {
  Station a, b;
  const PeerId in = a.Connect(b);
  ASSERT_TRUE(Until(a, b, [&] { return !b.postbox.joined.empty(); }));
  b.transport->CloseSession(1, 1);
  const PeerId out = a.Connect(b);
  ASSERT_TRUE(Until(a, b, [&] { return !a.postbox.losses.empty(); }));
  EXPECT_EQ(a.postbox.losses[0].first, out);
  a.transport->Send(in, HeaderOf(1, 0), {}, nullptr);
  ASSERT_TRUE(Until(a, b, [&] { return !b.postbox.messages.empty(); }));
}

// The data port has accepted the peer, but the transport has not seen it yet, or is in the TLS
// handshake.
TEST(TcpTransportTest, APeerIsRefusedIfItsSessionEndsOrChangesBeforeItJoins) {
  for (const DataSecurity security : {DataSecurity::kAuth, DataSecurity::kEncrypt}) {
    for (const bool changes : {false, true}) {
      Station server(OpenPort({.bind_host = "127.0.0.1", .security = security}));
      Impostor impostor(server, /*checksums=*/false, /*connection=*/0, security);
      while (server.port->members() == 0) std::this_thread::yield();
      if (security == DataSecurity::kEncrypt) {
        ASSERT_FALSE(impostor.Encrypt());
        ASSERT_TRUE(ProgressUntil({server.transport.get()}, [&] { return impostor.HasHeard(); }));
      }
      if (changes) {
        server.transport->OpenSession(1, 1, SessionToken::Random());
      } else {
        server.transport->CloseSession(1, 1);
      }
      if (security == DataSecurity::kEncrypt) {
        ASSERT_TRUE(ProgressUntil({server.transport.get()}, [&] { return impostor.Encrypt(); }));
      }
      EXPECT_TRUE(ProgressUntil({server.transport.get()}, [&] { return impostor.IsHungUpOn(); }));
      EXPECT_TRUE(server.postbox.joined.empty());
      EXPECT_TRUE(server.postbox.losses.empty());
    }
  }
}

// The arguments of a callback stay valid if the receiver disconnects the peer meanwhile. A
// sanitizer checks it.
TEST(TcpTransportTest, AReceiverMayDisconnectAPeerThatJoinsOrIsLost) {
  Station a, b;
  b.postbox.on_joined = [&b](PeerId peer) { b.transport->Disconnect(peer); };
  const PeerId to_b = a.Connect(b);
  ASSERT_TRUE(Until(a, b, [&] { return !a.postbox.losses.empty(); }));
  ASSERT_EQ(b.postbox.joined.size(), 1u);
  EXPECT_EQ(b.postbox.joined[0].second, CredentialsOf(3).self);
  absl::Status told;
  a.transport->Send(to_b, HeaderOf(1, 0), {}, [&](const absl::Status& status) {
    a.transport->Disconnect(to_b);
    told = status;
  });
  EXPECT_EQ(told, a.postbox.losses[0].second);
}

TEST(TcpTransportTest, AnAddressWithoutAListenerIsALossThatNamesIt) {
  Station a;
  auto b = std::make_unique<Station>();
  const std::string address = b->transport->address();
  const uint16_t port = b->port->port();
  b.reset();
  auto peer = a.transport->Connect(address, CredentialsOf(1));
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_TRUE(a.postbox.losses.empty()) << "PeerLost was called from inside Connect";
  ASSERT_TRUE(ProgressUntil({a.transport.get()}, [&] { return !a.postbox.losses.empty(); }));
  EXPECT_TRUE(absl::IsUnavailable(a.postbox.losses[0].second));
  EXPECT_TRUE(
      absl::StrContains(a.postbox.losses[0].second.message(), "127.0.0.1:" + std::to_string(port)))
      << a.postbox.losses[0].second;
}

TEST(TcpTransportTest, ANameThatIsNotResolvedInTimeIsALossThatNamesIt) {
  absl::Notification over;
  Station b(OpenPort({.bind_host = "127.0.0.1", .advertise_host = "ps-0.muster"}));
  // The test ends the lookup before the port's destructor waits for it.
  Station a(OpenPort({.bind_host = "127.0.0.1",
                      .resolve =
                          [&over](const std::string&, uint16_t port) {
                            over.WaitForNotification();
                            return absl::StatusOr<std::vector<SocketAddress>>(
                                {*SocketAddress::Numeric("127.0.0.1", port)});
                          }}),
            /*spin=*/false, /*connections=*/1, std::chrono::milliseconds(50));
  const PeerId late = a.Connect(b), given_up = a.Connect(b);
  a.transport->Disconnect(given_up);
  const bool lost = ProgressUntil({a.transport.get()}, [&] { return !a.postbox.losses.empty(); });
  over.Notify();
  ASSERT_TRUE(lost);
  EXPECT_EQ(a.postbox.losses[0].first, late);
  EXPECT_TRUE(absl::IsUnavailable(a.postbox.losses[0].second));
  EXPECT_TRUE(absl::StrContains(a.postbox.losses[0].second.message(), "'ps-0.muster'"))
      << a.postbox.losses[0].second;
}

TEST(TcpTransportTest, ADifferenceInSecurityIsALossThatNamesBoth) {
  Station a, b(OpenPort({.bind_host = "127.0.0.1", .security = DataSecurity::kEncrypt}));
  a.Connect(b);
  ASSERT_TRUE(Until(a, b, [&] { return !a.postbox.losses.empty(); }));
  EXPECT_TRUE(absl::IsFailedPrecondition(a.postbox.losses[0].second));
  EXPECT_TRUE(absl::StrContains(a.postbox.losses[0].second.message(), "auth here, encrypt there"))
      << a.postbox.losses[0].second;
}

TEST(TcpTransportTest, BytesThatAreNoAddressAreRefused) {
  Station a;
  std::string address = a.transport->address();
  for (const std::string& wrong : {std::string(), std::string("x"), address.substr(1),
                                   address.substr(0, address.size() - 1), address + "x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(a.transport->Connect(wrong, CredentialsOf(1)).status()));
  }
}

TEST(TcpTransportTest, AnotherConnectionIsOpenedWhenTheOthersAreBusy) {
  constexpr uint32_t kMessages = 40;
  const auto port = OpenPort();
  Station a(port, /*spin=*/false, /*connections=*/3), b;
  const PeerId to_b = a.Connect(b);
  ASSERT_TRUE(Until(a, b, [&] { return !b.postbox.joined.empty(); }));
  const PeerId to_a = b.postbox.joined[0].first;
  const std::vector<std::byte> small = PatternOf(1, 1000), large = PatternOf(2, 3 << 20);
  for (int i = 0; i < 10; ++i) a.transport->Send(to_b, HeaderOf(i, 1000), small, nullptr);
  ASSERT_TRUE(Until(a, b, [&] { return b.postbox.messages.size() == 10; }));
  EXPECT_EQ(a.transport->Describe(to_b).connections, 1);
  b.postbox.messages.clear();

  const int before = OpenDescriptors();
  uint32_t dones = 0, sent = 0;
  // A busy machine may send the messages before a connection has been opened.
  while (sent < kMessages ||
         (a.transport->Describe(to_b).connections < 3 && sent < 4 * kMessages)) {
    a.transport->Send(to_b, HeaderOf(sent++, large.size()), large,
                      [&dones](const absl::Status& status) { dones += status.ok(); });
    a.transport->Progress();
    b.transport->Progress();
  }
  ASSERT_TRUE(Until(a, b, [&] { return b.postbox.messages.size() == sent; }));
  EXPECT_EQ(a.transport->Describe(to_b).connections, 3);
  EXPECT_EQ(b.transport->Describe(to_a).connections, 3);
  EXPECT_EQ(OpenDescriptors(), before + 4) << "two more at each end";
  EXPECT_EQ(b.postbox.joined.size(), 1u);
  std::vector<int> seen(sent);
  for (const Postbox::Message& message : b.postbox.messages) {
    EXPECT_EQ(message.from, to_a);
    EXPECT_EQ(++seen[message.header.chunk], 1);
    EXPECT_TRUE(Same(message.payload, large));
  }

  // All messages that were done when a peer leaves arrive, over any connection, before the single
  // loss.
  b.postbox.messages.clear();
  dones = 0;
  for (uint32_t i = 0; i < 6; ++i) {
    a.transport->Send(to_b, HeaderOf(i, 100'000), absl::MakeConstSpan(large).first(100'000),
                      [&dones](const absl::Status& status) { dones += status.ok(); });
  }
  ASSERT_TRUE(ProgressUntil({a.transport.get()}, [&] { return dones == 6; }));
  a.transport->Disconnect(to_b);
  ASSERT_TRUE(Until(a, b, [&] { return !b.postbox.losses.empty(); }));
  EXPECT_EQ(b.postbox.messages.size(), 6u);
  for (int i = 0; i < 10; ++i) b.transport->Progress(), a.transport->Progress();
  EXPECT_EQ(b.postbox.losses.size(), 1u);
  EXPECT_EQ(OpenDescriptors(), before - 2);
}

TEST(TcpTransportTest, APeerThatDoesNotEncryptIsIgnoredAndDropped) {
  Station server(OpenPort({.bind_host = "127.0.0.1", .security = DataSecurity::kEncrypt}),
                 /*spin=*/false, /*connections=*/1, std::chrono::milliseconds(50));
  const int before = OpenDescriptors();
  {
    const Impostor plain(server, false, 0, DataSecurity::kEncrypt);
    const Impostor silent(server, false, 0, DataSecurity::kEncrypt);
    plain.Say(EncodeHeader(HeaderOf(1, 0)));
    ASSERT_TRUE(ProgressUntil({server.transport.get()}, [&] { return silent.IsHungUpOn(); }));
    EXPECT_EQ(OpenDescriptors(), before + 2) << "only those of the impostors are open";
  }
  EXPECT_TRUE(server.postbox.joined.empty());
  EXPECT_TRUE(server.postbox.messages.empty());
  EXPECT_TRUE(server.postbox.losses.empty());
}

// One look at the socket finds both records, and no further byte causes another look.
TEST(TcpTransportTest, AnEncryptedLinkDeliversGoodRecordsAndEndsAtTheFirstBadOne) {
  constexpr DataSecurity kEncrypt = DataSecurity::kEncrypt;
  int damaged = 0;
  Station server(OpenPort(
      {.bind_host = "127.0.0.1", .security = kEncrypt, .damaged_frame = [&] { ++damaged; }}));
  Impostor impostor(server, /*checksums=*/false, /*connection=*/0, kEncrypt);
  ASSERT_TRUE(ProgressUntil({server.transport.get()}, [&] { return impostor.Encrypt(); }));
  ASSERT_TRUE(
      ProgressUntil({server.transport.get()}, [&] { return !server.postbox.joined.empty(); }));
  std::array<std::byte, 5 + 40> bad = {std::byte{23}, std::byte{3}, std::byte{3}, std::byte{0},
                                       std::byte{40}};
  impostor.SayEncrypted(EncodeHeader(HeaderOf(1, 0)));
  impostor.Say(bad);
  ASSERT_TRUE(
      ProgressUntil({server.transport.get()}, [&] { return !server.postbox.losses.empty(); }));
  EXPECT_EQ(server.postbox.messages.size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(server.postbox.losses[0].second))
      << server.postbox.losses[0].second;
  EXPECT_EQ(damaged, 1);
}

// The record's header promises more bytes than arrive, like one with a length changed in transit.
TEST(TcpTransportTest, AnEncryptedRecordThatStaysUnfinishedEndsTheLink) {
  constexpr DataSecurity kEncrypt = DataSecurity::kEncrypt;
  Station server(OpenPort({.bind_host = "127.0.0.1", .security = kEncrypt}),
                 /*spin=*/false, /*connections=*/1, std::chrono::seconds(5),
                 /*record_time_max=*/std::chrono::milliseconds(50));
  Impostor impostor(server, /*checksums=*/false, /*connection=*/0, kEncrypt);
  ASSERT_TRUE(ProgressUntil({server.transport.get()}, [&] { return impostor.Encrypt(); }));
  ASSERT_TRUE(
      ProgressUntil({server.transport.get()}, [&] { return !server.postbox.joined.empty(); }));
  impostor.SayEncrypted(EncodeHeader(HeaderOf(1, 0)));
  impostor.Say(std::array<std::byte, 7>{std::byte{23}, std::byte{3}, std::byte{3}, std::byte{1}});
  ASSERT_TRUE(
      ProgressUntil({server.transport.get()}, [&] { return !server.postbox.losses.empty(); }));
  EXPECT_EQ(server.postbox.messages.size(), 1u) << "the message before it is good";
  EXPECT_TRUE(absl::IsUnavailable(server.postbox.losses[0].second));
  EXPECT_TRUE(absl::StrContains(server.postbox.losses[0].second.message(), "unfinished"))
      << server.postbox.losses[0].second;
}

// The peer is a member of the session, but has no such link.
TEST(TcpTransportTest, AConnectionOfAnUnknownLinkIsHungUpOn) {
  Station server;
  const Impostor impostor(server, /*checksums=*/false, /*connection=*/1);
  EXPECT_TRUE(ProgressUntil({server.transport.get()}, [&] { return impostor.IsHungUpOn(); }));
  EXPECT_TRUE(server.postbox.joined.empty());
}

// The connecting side gives the additional connection up after this side has accepted it.
TEST(TcpTransportTest, AnAdditionalConnectionThatCarriedNothingIsLostAlone) {
  Station server;
  const std::string link = SessionToken::Random().ToBytes();
  const Impostor first(server, false, /*connection=*/0, DataSecurity::kAuth, link);
  ASSERT_TRUE(
      ProgressUntil({server.transport.get()}, [&] { return !server.postbox.joined.empty(); }));
  const PeerId peer = server.postbox.joined[0].first;
  const auto connections = [&] { return server.transport->Describe(peer).connections; };
  {
    const Impostor second(server, false, /*connection=*/1, DataSecurity::kAuth, link);
    ASSERT_TRUE(ProgressUntil({server.transport.get()}, [&] { return connections() == 2; }));
    int dones = 0;
    for (uint32_t i = 0; i < 3; ++i) {
      server.transport->Send(peer, HeaderOf(i, 0), {},
                             [&dones](const absl::Status& status) { dones += status.ok(); });
    }
    ASSERT_TRUE(ProgressUntil({server.transport.get()}, [&] { return dones == 3; }));
    EXPECT_FALSE(second.HasHeard()) << "the other end may not listen there";
  }
  ASSERT_TRUE(ProgressUntil({server.transport.get()}, [&] { return connections() == 1; }));
  first.Say(EncodeHeader(HeaderOf(1, 0)));
  ASSERT_TRUE(
      ProgressUntil({server.transport.get()}, [&] { return !server.postbox.messages.empty(); }));
  EXPECT_TRUE(server.postbox.losses.empty());
}

TEST(TcpTransportTest, AnAdditionalConnectionThatCarriedSomethingEndsItsLink) {
  Station server;
  const std::string link = SessionToken::Random().ToBytes();
  const Impostor first(server, false, /*connection=*/0, DataSecurity::kAuth, link);
  ASSERT_TRUE(
      ProgressUntil({server.transport.get()}, [&] { return !server.postbox.joined.empty(); }));
  {
    const Impostor second(server, false, /*connection=*/1, DataSecurity::kAuth, link);
    second.Say(EncodeHeader(HeaderOf(1, 0)));
    ASSERT_TRUE(
        ProgressUntil({server.transport.get()}, [&] { return !server.postbox.messages.empty(); }));
  }
  EXPECT_TRUE(ProgressUntil({server.transport.get()}, [&] { return first.IsHungUpOn(); }));
}

// The other end could not keep the connection. The message that it did not take is sent over
// another one.
TEST(TcpTransportTest, MessagesOfALostAdditionalConnectionAreSentOverAnother) {
  const auto port = OpenPort();
  const auto listener = port->MakeListener([] {});
  listener->OpenSession(1, 1, SessionToken());
  std::string inside;
  const auto append = [&inside](uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) inside.push_back(static_cast<char>(value >> (8 * i)));
  };
  append(port->id(), 8);
  append(listener->number(), 4);
  append(port->port(), 2);
  append(9, 1);
  Station a(OpenPort(), /*spin=*/false, /*connections=*/2);
  const auto to = a.transport->Connect(SealAddress("MUT1", inside + "127.0.0.1"), CredentialsOf(3));
  ASSERT_TRUE(to.ok()) << to.status();

  const std::vector<std::byte> payload = PatternOf(1, 8 << 20);
  size_t dones = 0;
  const auto count = [&dones](const absl::Status& status) { dones += status.ok(); };
  std::vector<DataPort::Member> members;
  const auto come = [&](size_t wanted) {
    return ProgressUntil({a.transport.get()}, [&] {
      for (DataPort::Member& member : listener->Take().members)
        members.push_back(std::move(member));
      return members.size() == wanted && a.transport->Describe(*to).connections == wanted;
    });
  };
  ASSERT_TRUE(come(1));
  for (int i = 0; i < 2; ++i) a.transport->Send(*to, HeaderOf(i, payload.size()), payload, count);
  ASSERT_TRUE(come(2));
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(members[1].socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  members[1].socket = FileDescriptor();
  a.transport->Send(*to, HeaderOf(2, 0), {}, count);
  EXPECT_EQ(dones, 0u);

  const size_t all = 3 * WireHeader::kBytes + 2 * payload.size();
  std::vector<std::byte> room(1 << 20);
  size_t heard = 0;
  ASSERT_TRUE(ProgressUntil({a.transport.get()}, [&] {
    const ssize_t size = recv(members[0].socket.get(), room.data(), room.size(), 0);
    heard += std::max<ssize_t>(size, 0);
    return heard == all && dones == 3;
  }));
  EXPECT_EQ(a.transport->Describe(*to).connections, 1);
  EXPECT_TRUE(a.postbox.losses.empty());
}

TEST(TcpTransportTest, ARefusedAdditionalConnectionIsTriedAgainLater) {
  Station a(OpenPort(), /*spin=*/false, /*connections=*/2, std::chrono::seconds(1)), b;
  const PeerId to_b = a.Connect(b);
  ASSERT_TRUE(Until(a, b, [&] { return !b.postbox.joined.empty(); }));
  const std::vector<std::byte> payload = PatternOf(1, 2 << 20);
  b.postbox.refuse_payloads = true;
  const auto send = [&] {
    int dones = 0;
    for (uint32_t i = 0; i < 8; ++i) {
      a.transport->Send(to_b, HeaderOf(i, payload.size()), payload,
                        [&dones](const absl::Status& status) { dones += status.ok(); });
    }
    return Until(a, b, [&] { return dones == 8; });
  };
  b.transport->CloseSession(1, 1);
  ASSERT_TRUE(send());
  ASSERT_TRUE(Until(a, b, [&] { return b.port->unauthenticated_peers() == 1; }));
  OpenTestSession(*b.transport);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (b.transport->Describe(b.postbox.joined[0].first).connections < 2) {
    ASSERT_TRUE(send());
    ASSERT_LT(std::chrono::steady_clock::now(), end);
  }
  EXPECT_TRUE(a.postbox.losses.empty());
}

// Returns the ranks of two senders in the order in which their payloads arrive. Both have sent as
// much as the kernels accept before anything is read.
std::vector<uint32_t> RanksOfTwoSenders(size_t bytes, size_t each) {
  Station server, eager, late;
  const PeerId from_eager = eager.Connect(server, 1), from_late = late.Connect(server, 2);
  EXPECT_TRUE(ProgressUntil({server.transport.get(), eager.transport.get(), late.transport.get()},
                            [&] { return server.postbox.joined.size() == 2; }));
  const std::vector<std::byte> payload = PatternOf(1, bytes);
  for (const auto& [station, peer, rank] :
       {std::tuple(&eager, from_eager, 1u), std::tuple(&late, from_late, 2u)}) {
    WireHeader header = HeaderOf(0, payload.size());
    header.rank = rank;
    for (size_t i = 0; i < each; ++i) station->transport->Send(peer, header, payload, nullptr);
    for (int i = 0; i < 100; ++i) station->transport->Progress();
  }
  EXPECT_TRUE(ProgressUntil({eager.transport.get(), server.transport.get(), late.transport.get()},
                            [&] { return server.postbox.messages.size() == 2 * each; }));
  std::vector<uint32_t> ranks;
  for (const Postbox::Message& message : server.postbox.messages) {
    ranks.push_back(message.header.rank);
  }
  return ranks;
}

TEST(TcpTransportTest, TheSenderWithTheFewestFetchedBytesIsReadNext) {
  int ahead = 0;
  for (const uint32_t rank : RanksOfTwoSenders(2 << 20, 12)) {
    ahead += rank == 1 ? 1 : -1;
    EXPECT_LE(std::abs(ahead), 2);
  }
}

// Payloads are read one at a time, however small. The transport reads 2 MiB of a lone sender before
// it polls the other. So one is ahead at the start, and the other is alone at the end.
TEST(TcpTransportTest, SendersOfSmallPayloadsAlternateToo) {
  const std::vector<uint32_t> ranks = RanksOfTwoSenders(64 << 10, 300);
  int turns = 0;
  for (size_t i = 1; i < ranks.size(); ++i) turns += ranks[i] != ranks[i - 1];
  EXPECT_GT(turns, static_cast<int>(ranks.size()) / 2);
}

TEST(TcpTransportTest, AMemberThatSendsInvalidMessagesLosesOnlyItsOwnLink) {
  int damaged = 0;
  Station honest;
  Station server(OpenPort({.bind_host = "127.0.0.1", .damaged_frame = [&] { ++damaged; }}));
  const PeerId to_server = honest.Connect(server);
  ASSERT_TRUE(Until(honest, server, [&] { return server.postbox.joined.size() == 1; }));
  const int before = OpenDescriptors();
  const auto good = EncodeHeader(HeaderOf(1, 0));
  for (size_t at = 0; at < good.size(); ++at) {
    const Impostor impostor(server);
    auto bad = good;
    bad[at] ^= std::byte{0x90};
    impostor.Say(good);
    impostor.Say(bad);
    server.postbox.losses.clear();
    ASSERT_TRUE(Until(honest, server, [&] { return !server.postbox.losses.empty(); })) << at;
    EXPECT_EQ(server.postbox.losses[0].first, server.postbox.joined.back().first);
    EXPECT_EQ(server.postbox.messages.size(), at + 1) << "the message before it is good";
  }
  EXPECT_EQ(server.transport->malformed_links(), 64);
  EXPECT_EQ(damaged, 64 - 6) << "a wrong magic or version does not count as damage";
  EXPECT_EQ(OpenDescriptors(), before);
  const std::vector<std::byte> payload = PatternOf(1, 100'000);
  honest.transport->Send(to_server, HeaderOf(7, payload.size()), payload, nullptr);
  ASSERT_TRUE(Until(honest, server, [&] { return server.postbox.messages.size() == 65; }));
  EXPECT_TRUE(honest.postbox.losses.empty());
}

TEST(TcpTransportTest, AMemberThatDiesDuringAPayloadLosesItBeforeItIsLost) {
  for (const size_t size : {1000, 100'000}) {
    int damaged = 0;
    Station server(OpenPort({.bind_host = "127.0.0.1", .damaged_frame = [&] { ++damaged; }}));
    const std::vector<std::byte> part = PatternOf(1, size / 2);
    {
      const Impostor impostor(server);
      impostor.Say(EncodeHeader(HeaderOf(5, size)));
      impostor.Say(part);
    }
    ASSERT_TRUE(
        ProgressUntil({server.transport.get()}, [&] { return !server.postbox.losses.empty(); }));
    ASSERT_EQ(server.postbox.lost_payloads.size(), 1u);
    EXPECT_EQ(server.postbox.lost_payloads[0].second, HeaderOf(5, size));
    EXPECT_EQ(server.postbox.payloads_lost_before_peer[0], 1u);
    EXPECT_TRUE(server.postbox.messages.empty());
    EXPECT_EQ(damaged, 0);
  }
}

TEST(TcpTransportTest, APayloadChangedInTransitIsDataLossAndEndsTheLink) {
  for (const size_t size : {1000, 100'000}) {
    int damaged = 0;
    Station server(OpenPort({.bind_host = "127.0.0.1", .damaged_frame = [&] { ++damaged; }}));
    const std::vector<std::byte> payload = PatternOf(1, size);
    const uint32_t crc = Crc32c(payload);
    const Impostor impostor(server, /*checksums=*/true);
    for (const uint32_t sent : {crc, crc ^ 1}) {
      std::array<std::byte, 4> checksum;
      for (int i = 0; i < 4; ++i) checksum[i] = static_cast<std::byte>(sent >> (8 * i));
      impostor.Say(EncodeHeader(HeaderOf(5, size)));
      impostor.Say(payload);
      impostor.Say(checksum);
    }
    ASSERT_TRUE(
        ProgressUntil({server.transport.get()}, [&] { return !server.postbox.losses.empty(); }));
    EXPECT_TRUE(absl::IsDataLoss(server.postbox.losses[0].second))
        << server.postbox.losses[0].second;
    EXPECT_EQ(server.postbox.messages.size(), 1u);
    ASSERT_EQ(server.postbox.lost_payloads.size(), 1u);
    EXPECT_EQ(damaged, 1);
  }
}

TEST(TcpTransportTest, AMessageMayArriveByteByByte) {
  Station server;
  const std::vector<std::byte> payload = PatternOf(1, 20'000);
  const Impostor impostor(server);
  for (const std::byte byte : EncodeHeader(HeaderOf(5, payload.size()))) {
    impostor.Say({&byte, 1});
    server.transport->Progress();
  }
  for (const std::byte& byte : payload) {
    impostor.Say({&byte, 1});
    if ((&byte - payload.data()) % 100 == 0) server.transport->Progress();
  }
  ASSERT_TRUE(
      ProgressUntil({server.transport.get()}, [&] { return !server.postbox.messages.empty(); }));
  EXPECT_TRUE(Same(server.postbox.messages[0].payload, payload));
}

// A connection that dies while it waits for its turn leaves the queue.
TEST(TcpTransportTest, APeerThatDiesWhileWaitingForATurnHoldsUpNoOther) {
  Station server, honest;
  const PeerId to_server = honest.Connect(server);
  ASSERT_TRUE(Until(honest, server, [&] { return server.postbox.joined.size() == 1; }));
  const std::vector<std::byte> part = PatternOf(1, 1 << 20);
  auto first = std::make_unique<Impostor>(server), second = std::make_unique<Impostor>(server);
  for (const Impostor* impostor : {first.get(), second.get()}) {
    impostor->Say(EncodeHeader(HeaderOf(5, 8 << 20)));
    impostor->Say(absl::MakeConstSpan(part).first(1000));
  }
  ASSERT_TRUE(ProgressUntil({server.transport.get()}, [&] { return server.postbox.placed == 2; }));
  server.transport->Disconnect(server.postbox.joined[1].first);
  server.transport->Disconnect(server.postbox.joined[2].first);
  honest.transport->Send(to_server, HeaderOf(7, part.size()), part, nullptr);
  ASSERT_TRUE(Until(honest, server, [&] { return server.postbox.messages.size() == 1; }));
  EXPECT_TRUE(server.postbox.lost_payloads.empty()) << "the disconnecting side gets no callback";
}

}  // namespace
}  // namespace muster::tcp_transport_test
