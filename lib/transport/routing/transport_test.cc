// Tests what every Transport must do, with each kind of transport.
#include "lib/transport/core/transport.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/shared_slab.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/routing/routing_transport.h"
#include "lib/transport/session/session.h"
#include "lib/transport/session/session_handshake.h"
#include "lib/transport/shm/shared_memory_transport.h"
#include "lib/transport/tcp/data_port.h"
#include "lib/transport/tcp/tcp_transport.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "lib/transport/testing/postbox.h"
#include "lib/transport/ucx/ucx_transport.h"

namespace muster::transport_test {
namespace {

class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual std::unique_ptr<Transport> MakeTransport() = 0;
};

class InProcessFabric : public Fabric {
 public:
  std::unique_ptr<Transport> MakeTransport() override { return network_.MakeTransport(); }

 private:
  InProcessNetwork network_;
};

// Transports of one backend, each with its own event loop.
class BackendFabric : public Fabric {
 public:
  using Make = std::function<absl::StatusOr<std::unique_ptr<Transport>>(EventLoop*)>;

  BackendFabric(bool spin, Make make) : spin_(spin), make_(std::move(make)) {}

  std::unique_ptr<Transport> MakeTransport() override {
    auto loop = EventLoop::Create({.regardless = spin_});
    EXPECT_TRUE(loop.ok()) << loop.status();
    loops_.push_back(*std::move(loop));
    auto transport = make_(loops_.back().get());
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  }

 private:
  const bool spin_;
  const Make make_;
  std::vector<std::unique_ptr<EventLoop>> loops_;  // must outlive the transports
};

using Made = absl::StatusOr<std::unique_ptr<Transport>>;

// Gives every transport its own port, as if they were in different processes.
std::unique_ptr<Fabric> Tcp(bool spin, DataPortOptions options = {}) {
  options.bind_host = "127.0.0.1";
  return std::make_unique<BackendFabric>(spin, [options](EventLoop* loop) -> Made {
    auto port = DataPort::Open(options);
    if (!port.ok()) return port.status();
    return TcpTransport::Create(loop, {.port = *std::move(port)});
  });
}

std::unique_ptr<Fabric> SharedMemory(bool spin) {
  return std::make_unique<BackendFabric>(
      spin, [](EventLoop* loop) -> Made { return SharedMemoryTransport::Create(loop); });
}

std::unique_ptr<Fabric> Ucx(bool spin) {
  return std::make_unique<BackendFabric>(spin, [](EventLoop* loop) -> Made {
    return UcxTransport::Create(loop, {.networks = UcxTransportOptions::Networks::kAny});
  });
}

class RoutingFabric : public Fabric {
 public:
  explicit RoutingFabric(RoutingTransportOptions options) : options_(std::move(options)) {}
  std::unique_ptr<Transport> MakeTransport() override {
    auto port = DataPort::Open({.bind_host = "127.0.0.1"});
    EXPECT_TRUE(port.ok()) << port.status();
    RoutingTransportOptions options = options_;
    options.port = *std::move(port);  // destroyed with its transport
    auto transport = RoutingTransport::Create(std::move(options));
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  }

 private:
  const RoutingTransportOptions options_;
};

std::unique_ptr<Fabric> Routing(RoutingTransportOptions options) {
  return std::make_unique<RoutingFabric>(std::move(options));
}

struct FabricCase {
  std::string name;
  std::function<std::unique_ptr<Fabric>()> make;
  bool lends = true;  // whether payloads in slabs are lent to receivers that read in place
};

class TransportTest : public testing::TestWithParam<FabricCase> {
 protected:
  struct Station {
    Postbox postbox;  // must outlive the transport
    std::unique_ptr<Transport> transport;
  };

  TransportTest() : fabric_(GetParam().make()) {}

  std::unique_ptr<Station> MakeStation() {
    auto station = std::make_unique<Station>();
    station->transport = fabric_->MakeTransport();
    station->transport->SetReceiver(&station->postbox);
    OpenTestSession(*station->transport);
    return station;
  }

  static PeerId Connect(Station& from, Station& to, uint32_t index = 0) {
    auto peer = from.transport->Connect(to.transport->address(), CredentialsOf(index));
    EXPECT_TRUE(peer.ok()) << peer.status();
    return *peer;
  }

  // Waits for a peer to join, and returns the id of the last one at `to`.
  static PeerId AwaitJoin(Station& from, Station& to) {
    const size_t before = to.postbox.joined.size();
    EXPECT_TRUE(ProgressUntil({from.transport.get(), to.transport.get()},
                              [&] { return to.postbox.joined.size() > before; }));
    return to.postbox.joined.back().first;
  }

  std::unique_ptr<Fabric> fabric_;
};

const size_t kSizes[] = {0,     1,     63,    64,    4096,    8100,    8192,    12000,
                         16383, 16384, 16385, 65536, 1000003, 4 << 20, 64 << 20};

TEST_P(TransportTest, MessagesOfEverySizeArriveInBothDirections) {
  auto a = MakeStation(), b = MakeStation();
  const PeerId to_b = Connect(*a, *b), to_a = AwaitJoin(*a, *b);
  uint32_t number = 0;
  for (size_t size : kSizes) {
    ++number;
    struct Way {
      Station *from, *to;
      PeerId peer;
    };
    for (const Way& way : {Way{a.get(), b.get(), to_b}, Way{b.get(), a.get(), to_a}}) {
      const Postbox& inbox = way.to->postbox;
      const std::vector<std::byte> payload = PatternOf(number, size);
      const size_t before = inbox.messages.size();
      int dones = 0;
      way.from->transport->Send(way.peer, HeaderOf(number, size), payload,
                                [&](const absl::Status& status) {
                                  EXPECT_TRUE(status.ok()) << status;
                                  ++dones;
                                });
      ASSERT_TRUE(ProgressUntil({a->transport.get(), b->transport.get()},
                                [&] { return dones > 0 && inbox.messages.size() > before; }))
          << size << " bytes";
      EXPECT_EQ(dones, 1);
      EXPECT_EQ(inbox.messages.back().header, HeaderOf(number, size));
      EXPECT_TRUE(inbox.messages.back().payload == absl::MakeConstSpan(payload)) << size;
    }
  }
}

TEST_P(TransportTest, ManyMessagesInFlightArriveOnce) {
  constexpr uint32_t kMessages = 600;
  auto a = MakeStation(), b = MakeStation();
  const PeerId to_b = Connect(*a, *b), to_a = AwaitJoin(*a, *b);
  std::vector<std::vector<std::byte>> payloads;
  for (uint32_t i = 0; i < kMessages; ++i) {
    payloads.push_back(PatternOf(i, i % 10 == 0 ? 300'000 : i % 3 == 0 ? 20'000 : 37 * i % 5000));
  }
  uint32_t dones = 0;
  auto count = [&dones](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    ++dones;
  };

  for (uint32_t i = 0; i < kMessages; ++i) {
    a->transport->Send(to_b, HeaderOf(i, payloads[i].size()), payloads[i], count);
    b->transport->Send(to_a, HeaderOf(i, payloads[i].size()), payloads[i], count);
  }
  ASSERT_TRUE(ProgressUntil({a->transport.get(), b->transport.get()}, [&] {
    return dones == 2 * kMessages && a->postbox.messages.size() >= kMessages &&
           b->postbox.messages.size() >= kMessages;
  }));

  for (Station* station : {a.get(), b.get()}) {
    std::vector<int> seen(kMessages);
    for (const Postbox::Message& message : station->postbox.messages) {
      const uint32_t i = message.header.chunk;
      ASSERT_LT(i, kMessages);
      EXPECT_EQ(++seen[i], 1) << i;
      EXPECT_TRUE(message.payload == absl::MakeConstSpan(payloads[i])) << i;
    }
    EXPECT_EQ(station->postbox.messages.size(), kMessages);
  }
}

TEST_P(TransportTest, ADroppedPayloadDoesNotStopTheNextOne) {
  auto a = MakeStation(), b = MakeStation();
  const PeerId to_b = Connect(*a, *b);
  for (size_t size : {size_t{100}, size_t{3'000'000}}) {
    const std::vector<std::byte> payload = PatternOf(size, size);
    int dones = 0;
    auto count = [&dones](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      ++dones;
    };
    b->postbox.messages.clear();
    b->postbox.refuse_payloads = true;
    a->transport->Send(to_b, HeaderOf(1, size), payload, count);
    a->transport->Send(to_b, HeaderOf(2, 0), {}, count);
    ASSERT_TRUE(ProgressUntil({a->transport.get(), b->transport.get()},
                              [&] { return dones == 2 && !b->postbox.messages.empty(); }));
    b->postbox.refuse_payloads = false;
    a->transport->Send(to_b, HeaderOf(3, size), payload, count);
    ASSERT_TRUE(ProgressUntil({a->transport.get(), b->transport.get()},
                              [&] { return dones == 3 && b->postbox.messages.size() >= 2; }));
    EXPECT_EQ(b->postbox.messages.size(), 2u);
    EXPECT_EQ(b->postbox.messages[0].header.chunk, 2u);
    EXPECT_EQ(b->postbox.messages[1].header.chunk, 3u);
  }
}

TEST_P(TransportTest, ANanScalarArrivesUnchanged) {
  auto a = MakeStation(), b = MakeStation();
  const PeerId to_b = Connect(*a, *b);
  for (size_t size : {0, 100, 1'000'000}) {
    const std::vector<std::byte> payload = PatternOf(1, size);
    WireHeader header = HeaderOf(1, size);
    header.scalar = std::numeric_limits<double>::quiet_NaN();
    b->postbox.messages.clear();
    a->transport->Send(to_b, header, payload, nullptr);
    ASSERT_TRUE(ProgressUntil({a->transport.get(), b->transport.get()},
                              [&] { return !b->postbox.messages.empty(); }));
    EXPECT_TRUE(std::isnan(b->postbox.messages[0].header.scalar)) << size;
    EXPECT_TRUE(b->postbox.messages[0].payload == absl::MakeConstSpan(payload)) << size;
  }
}

TEST_P(TransportTest, AConnectingPeerIsKnownAndAnsweredOnTheSameLink) {
  auto client = MakeStation(), server = MakeStation();
  const std::vector<std::byte> answer = PatternOf(5, 200'000);
  server->postbox.on_message = [&](const Postbox::Message& message) {
    ASSERT_EQ(server->postbox.joined.size(), 1u);  // before any message
    EXPECT_EQ(message.from, server->postbox.joined[0].first);
    server->transport->Send(message.from, HeaderOf(9, answer.size()), answer, nullptr);
  };
  LinkCredentials credentials = CredentialsOf(/*index=*/7, LinkRole::kShard);
  auto to_server = client->transport->Connect(server->transport->address(), credentials);
  ASSERT_TRUE(to_server.ok()) << to_server.status();

  client->transport->Send(*to_server, HeaderOf(1, 0), {}, nullptr);

  ASSERT_TRUE(ProgressUntil({client->transport.get(), server->transport.get()},
                            [&] { return !client->postbox.messages.empty(); }));
  EXPECT_EQ(server->postbox.joined[0].second, credentials.self);
  EXPECT_EQ(client->postbox.messages[0].from, *to_server);
  EXPECT_TRUE(client->postbox.messages[0].payload == absl::MakeConstSpan(answer));
  EXPECT_TRUE(client->postbox.joined.empty());
}

TEST_P(TransportTest, SeveralPeersAreDistinguished) {
  auto server = MakeStation();
  std::vector<std::unique_ptr<Station>> clients;
  std::vector<PeerId> peers;
  for (uint32_t i = 0; i < 4; ++i) {
    clients.push_back(MakeStation());
    peers.push_back(Connect(*clients[i], *server, i));
    AwaitJoin(*clients[i], *server);
    EXPECT_EQ(server->postbox.joined[i].second.index, i);
  }
  // A second link of the last client is another peer.
  peers.push_back(Connect(*clients[3], *server, 4));
  AwaitJoin(*clients[3], *server);
  const std::vector<std::byte> payload = PatternOf(3, 100'000);
  for (uint32_t i = 0; i < 5; ++i) {
    clients[std::min(i, 3u)]->transport->Send(peers[i], HeaderOf(i, payload.size()), payload,
                                              nullptr);
    server->transport->Send(server->postbox.joined[i].first, HeaderOf(i, 0), {}, nullptr);
  }
  ASSERT_TRUE(ProgressUntil(
      {server->transport.get(), clients[0]->transport.get(), clients[1]->transport.get(),
       clients[2]->transport.get(), clients[3]->transport.get()},
      [&] {
        return server->postbox.messages.size() == 5 && clients[0]->postbox.messages.size() == 1 &&
               clients[1]->postbox.messages.size() == 1 &&
               clients[2]->postbox.messages.size() == 1 && clients[3]->postbox.messages.size() == 2;
      }));
  for (const Postbox::Message& message : server->postbox.messages) {
    EXPECT_EQ(message.from, server->postbox.joined[message.header.chunk].first);
  }
  for (uint32_t i = 0; i < 4; ++i) {
    for (const Postbox::Message& message : clients[i]->postbox.messages) {
      EXPECT_EQ(message.from, peers[message.header.chunk]);
    }
  }
}

TEST_P(TransportTest, APeerWithoutTheTokenIsRefused) {
  auto unauthenticated_peer = MakeStation(), server = MakeStation(), member = MakeStation();
  LinkCredentials wrong_token = CredentialsOf(0), wrong_job = wrong_token,
                  wrong_generation = wrong_token;
  wrong_token.token = SessionToken::Random();
  wrong_job.self.job = 2;
  wrong_generation.self.generation = 2;
  for (const LinkCredentials& credentials : {wrong_token, wrong_job, wrong_generation}) {
    auto peer = unauthenticated_peer->transport->Connect(server->transport->address(), credentials);
    ASSERT_TRUE(peer.ok()) << peer.status();
    const std::vector<std::byte> payload = PatternOf(1, 50'000);
    absl::Status sent;
    bool done = false;
    unauthenticated_peer->transport->Send(*peer, HeaderOf(1, payload.size()), payload,
                                          [&](const absl::Status& status) {
                                            sent = status;
                                            done = true;
                                          });
    unauthenticated_peer->postbox.losses.clear();
    ASSERT_TRUE(
        ProgressUntil({unauthenticated_peer->transport.get(), server->transport.get()},
                      [&] { return done && !unauthenticated_peer->postbox.losses.empty(); }));
    EXPECT_FALSE(sent.ok());
    EXPECT_EQ(unauthenticated_peer->postbox.losses[0].first, *peer);
    EXPECT_EQ(unauthenticated_peer->postbox.losses[0].second.code(),
              absl::StatusCode::kPermissionDenied)
        << unauthenticated_peer->postbox.losses[0].second;
  }
  EXPECT_TRUE(server->postbox.joined.empty());
  EXPECT_TRUE(server->postbox.messages.empty());

  // A member connects, and continues when the session is closed behind it.
  const PeerId to_server = Connect(*member, *server);
  AwaitJoin(*member, *server);
  server->transport->CloseSession(1, 1);
  member->transport->Send(to_server, HeaderOf(1, 0), {}, nullptr);
  ASSERT_TRUE(ProgressUntil({member->transport.get(), server->transport.get()},
                            [&] { return server->postbox.messages.size() == 1; }));
  Connect(*unauthenticated_peer, *server);
  unauthenticated_peer->postbox.losses.clear();
  ASSERT_TRUE(ProgressUntil({unauthenticated_peer->transport.get(), server->transport.get()},
                            [&] { return !unauthenticated_peer->postbox.losses.empty(); }));
  EXPECT_EQ(server->postbox.joined.size(), 1u);
}

TEST_P(TransportTest, ALinkOutlivesTheGenerationThatAcceptedIt) {
  auto client = MakeStation(), server = MakeStation(), late = MakeStation();
  const PeerId to_server = Connect(*client, *server), to_client = AwaitJoin(*client, *server);
  server->transport->OpenSession(1, 2, SessionToken());

  // Messages in both directions, with large and small payloads.
  for (const size_t size : {size_t{0}, size_t{100}, size_t{1'000'000}}) {
    const std::vector<std::byte> payload = PatternOf(size, size);
    server->postbox.messages.clear();
    client->postbox.messages.clear();
    client->transport->Send(to_server, HeaderOf(1, size), payload, nullptr);
    server->transport->Send(to_client, HeaderOf(2, size), payload, nullptr);
    ASSERT_TRUE(ProgressUntil({client->transport.get(), server->transport.get()}, [&] {
      return !server->postbox.messages.empty() && !client->postbox.messages.empty();
    })) << size;
    EXPECT_TRUE(server->postbox.messages[0].payload == absl::MakeConstSpan(payload));
    EXPECT_TRUE(client->postbox.messages[0].payload == absl::MakeConstSpan(payload));
  }

  // Peers that connect now must name the new generation, even after a call closes the old one.
  server->transport->CloseSession(1, 1);
  Connect(*late, *server);
  ASSERT_TRUE(ProgressUntil({late->transport.get(), server->transport.get()},
                            [&] { return !late->postbox.losses.empty(); }));
  EXPECT_EQ(late->postbox.losses[0].second.code(), absl::StatusCode::kPermissionDenied)
      << late->postbox.losses[0].second;
  EXPECT_EQ(server->postbox.joined.size(), 1u);
  LinkCredentials credentials = CredentialsOf(0);
  credentials.self.generation = 2;
  ASSERT_TRUE(late->transport->Connect(server->transport->address(), credentials).ok());
  AwaitJoin(*late, *server);
  EXPECT_EQ(server->postbox.joined.back().second, credentials.self);
  EXPECT_TRUE(client->postbox.losses.empty());
}

TEST_P(TransportTest, ADisconnectIsReportedAfterDoneMessagesArrived) {
  auto a = MakeStation(), b = MakeStation();
  const PeerId to_b = Connect(*a, *b), to_a = AwaitJoin(*a, *b);
  const std::vector<std::byte> payload = PatternOf(1, 5000);
  int done = 0;
  for (uint32_t i = 0; i < 3; ++i) {
    a->transport->Send(to_b, HeaderOf(i, payload.size()), payload,
                       [&](const absl::Status& status) { done += status.ok(); });
  }
  ASSERT_TRUE(ProgressUntil({a->transport.get(), b->transport.get()}, [&] { return done == 3; }));
  a->transport->Disconnect(to_b);
  ASSERT_TRUE(ProgressUntil({a->transport.get(), b->transport.get()},
                            [&] { return !b->postbox.losses.empty(); }));
  EXPECT_EQ(b->postbox.messages.size(), 3u);
  EXPECT_EQ(b->postbox.losses[0].first, to_a);
  EXPECT_EQ(b->postbox.losses[0].second.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(a->postbox.losses.empty());
  // The accepting side may disconnect too.
  const PeerId again = Connect(*a, *b), back = AwaitJoin(*a, *b);
  b->transport->Disconnect(back);
  ASSERT_TRUE(ProgressUntil({a->transport.get(), b->transport.get()},
                            [&] { return !a->postbox.losses.empty(); }));
  EXPECT_EQ(a->postbox.losses[0].first, again);
  EXPECT_EQ(b->postbox.losses.size(), 1u);
}

TEST_P(TransportTest, ATransportCanConnectToItself) {
  auto a = MakeStation();
  const PeerId to_a = Connect(*a, *a);
  const std::vector<std::byte> payload = PatternOf(1, 100'000);
  a->transport->Send(to_a, HeaderOf(1, payload.size()), payload, nullptr);
  ASSERT_TRUE(ProgressUntil({a->transport.get()}, [&] { return !a->postbox.messages.empty(); }));
  EXPECT_TRUE(a->postbox.messages[0].payload == absl::MakeConstSpan(payload));
}

TEST_P(TransportTest, BytesThatAreNoAddressAreRefused) {
  auto a = MakeStation();
  std::string truncated = a->transport->address(), flipped = truncated;
  truncated.resize(truncated.size() / 2);
  flipped[flipped.size() / 2] ^= 1;
  for (const std::string& bytes : {std::string(), std::string("x"), std::string(200, '\0'),
                                   std::string("127.0.0.1:80"), truncated, flipped}) {
    EXPECT_EQ(a->transport->Connect(bytes, CredentialsOf(0)).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bytes.size() << " bytes";
  }
}

TEST_P(TransportTest, ADeadAddressIsALostPeerEvenIfNothingIsSent) {
  auto a = MakeStation();
  std::string address;
  {
    auto gone = MakeStation();
    address = gone->transport->address();
  }
  auto peer = a->transport->Connect(address, CredentialsOf(0));
  ASSERT_TRUE(peer.ok()) << peer.status();
  ASSERT_TRUE(ProgressUntil(
      {a->transport.get()}, [&] { return !a->postbox.losses.empty(); }, std::chrono::seconds(10)));
  EXPECT_EQ(a->postbox.losses[0].first, *peer);
  absl::Status sent;
  const std::vector<std::byte> payload = PatternOf(1, 1000);
  bool done = false;
  a->transport->Send(*peer, HeaderOf(1, payload.size()), payload, [&](const absl::Status& status) {
    sent = status;
    done = true;
  });
  ASSERT_TRUE(ProgressUntil({a->transport.get()}, [&] { return done; }));
  EXPECT_EQ(sent.code(), absl::StatusCode::kUnavailable) << sent;
  EXPECT_EQ(a->postbox.losses.size(), 1u);
}

TEST_P(TransportTest, ADestroyedPeerIsReportedOnceAndPendingSendsFail) {
  constexpr int kMessages = 20;
  auto a = MakeStation(), b = MakeStation(), bystander = MakeStation();
  const PeerId to_b = Connect(*a, *b);
  const PeerId to_bystander = Connect(*a, *bystander);
  const std::vector<std::byte> payload = PatternOf(1, 2'000'000);
  a->transport->Send(to_b, HeaderOf(0, 0), {}, nullptr);
  ASSERT_TRUE(ProgressUntil({a->transport.get(), b->transport.get()},
                            [&] { return !b->postbox.messages.empty(); }));

  int failed = 0;
  for (int i = 0; i < kMessages; ++i) {
    a->transport->Send(to_b, HeaderOf(i, payload.size()), payload,
                       [&](const absl::Status& status) { failed += status.ok() ? 0 : 1; });
  }
  b->transport.reset();
  ASSERT_TRUE(ProgressUntil(
      {a->transport.get()}, [&] { return failed == kMessages && !a->postbox.losses.empty(); },
      std::chrono::seconds(10)))
      << failed << " failed, " << a->postbox.losses.size() << " losses";
  a->transport->Disconnect(to_b);
  a->transport->Send(to_bystander, HeaderOf(7, payload.size()), payload, nullptr);
  ASSERT_TRUE(ProgressUntil({a->transport.get(), bystander->transport.get()},
                            [&] { return !bystander->postbox.messages.empty(); }));

  EXPECT_EQ(a->postbox.losses.size(), 1u);
  EXPECT_EQ(a->postbox.losses[0].first, to_b);
}

TEST_P(TransportTest, DisconnectEndsPendingSendsAndIsNoLossForItsCaller) {
  constexpr int kMessages = 20;
  auto a = MakeStation(), b = MakeStation();
  const PeerId first = Connect(*a, *b);
  const std::vector<std::byte> payload = PatternOf(1, 2'000'000);
  int dones = 0;
  for (int i = 0; i < kMessages; ++i) {
    a->transport->Send(first, HeaderOf(i, payload.size()), payload,
                       [&](const absl::Status&) { ++dones; });
  }

  a->transport->Disconnect(first);

  ASSERT_TRUE(
      ProgressUntil({a->transport.get(), b->transport.get()}, [&] { return dones == kMessages; }));
  const PeerId second = Connect(*a, *b);
  EXPECT_NE(first, second);
  const size_t before = b->postbox.messages.size();
  a->transport->Send(second, HeaderOf(99, payload.size()), payload, nullptr);
  ASSERT_TRUE(ProgressUntil({a->transport.get(), b->transport.get()},
                            [&] { return b->postbox.messages.size() > before; }));
  EXPECT_TRUE(b->postbox.messages.back().payload == absl::MakeConstSpan(payload));
  EXPECT_TRUE(a->postbox.losses.empty());
}

TEST_P(TransportTest, ConnectingAndDisconnectingManyTimesKeepsWorking) {
  auto a = MakeStation(), b = MakeStation();
  const std::vector<std::byte> payload = PatternOf(1, 50'000);
  for (uint32_t i = 0; i < 50; ++i) {
    const PeerId to_b = Connect(*a, *b);
    bool done = false;
    a->transport->Send(to_b, HeaderOf(i, payload.size()), payload, [&](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      done = true;
    });
    ASSERT_TRUE(ProgressUntil({a->transport.get(), b->transport.get()}, [&] {
      return done && b->postbox.messages.size() == i + 1;
    })) << i;
    a->transport->Disconnect(to_b);
  }
}

TEST_P(TransportTest, WakeEndsAWaitThatHasNotBegun) {
  auto a = MakeStation();
  const auto start = std::chrono::steady_clock::now();
  a->transport->Wake();
  a->transport->Wait(absl::Seconds(30));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST_P(TransportTest, WakeEndsTheWaitOfAnotherThread) {
  auto a = MakeStation();
  std::jthread other([&] { a->transport->Wake(); });
  a->transport->Wait(absl::InfiniteDuration());
}

TEST_P(TransportTest, WaitEndsAtItsTimeout) {
  auto a = MakeStation();
  while (a->transport->Progress() > 0) {
  }
  const auto start = std::chrono::steady_clock::now();
  a->transport->Wait(absl::Milliseconds(20));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(19));
}

TEST_P(TransportTest, TwoThreadsExchangeMessagesWithWaitOnly) {
  constexpr uint32_t kRounds = 300;
  auto client = MakeStation(), server = MakeStation();
  const PeerId to_server = Connect(*client, *server);
  const std::vector<std::byte> request = PatternOf(1, 4096), answer = PatternOf(2, 50'000);
  std::jthread serving([&](std::stop_token stop) {
    server->postbox.on_message = [&](const Postbox::Message& message) {
      server->transport->Send(message.from, HeaderOf(message.header.chunk, answer.size()), answer,
                              nullptr);
    };
    std::stop_callback wake(stop, [&] { server->transport->Wake(); });
    while (!stop.stop_requested()) {
      if (server->transport->Progress() == 0) server->transport->Wait(absl::InfiniteDuration());
    }
  });

  for (uint32_t i = 0; i < kRounds; ++i) {
    client->transport->Send(to_server, HeaderOf(i, request.size()), request, nullptr);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (client->postbox.messages.size() <= i && std::chrono::steady_clock::now() < deadline) {
      if (client->transport->Progress() == 0) client->transport->Wait(absl::Seconds(30));
    }
    ASSERT_EQ(client->postbox.messages.size(), i + 1);
    ASSERT_EQ(client->postbox.messages.back().header.chunk, i);
  }
}

TEST_P(TransportTest, RegisteredMemoryMayOutliveTheTransport) {
  auto a = MakeStation();
  std::vector<std::byte> memory(1 << 20);
  auto registration = a->transport->RegisterMemory(absl::MakeSpan(memory));
  ASSERT_TRUE(registration.ok()) << registration.status();
  a->transport.reset();
  registration->reset();
}

// ---- Payloads in slabs, some of which are read in place.

class SlabTest : public TransportTest {
 protected:
  // A slab of `size` bytes of PatternOf(1), registered with `station`.
  struct Registered {
    std::shared_ptr<SharedSlab> slab;
    std::unique_ptr<Transport::MemoryRegistration> registration;
  };
  static Registered MakeSlab(Station& station, size_t size) {
    auto slab = SharedSlab::Allocate(size);
    EXPECT_TRUE(slab.ok()) << slab.status();
    std::ranges::copy(PatternOf(1, size), (*slab)->memory().begin());
    auto registration = station.transport->RegisterMemory((*slab)->memory());
    EXPECT_TRUE(registration.ok()) << registration.status();
    return {*slab, *std::move(registration)};
  }

  static bool Progress(Station& a, Station& b, const std::function<bool()>& until) {
    return ProgressUntil({a.transport.get(), b.transport.get()}, until);
  }

  std::unique_ptr<Station> a_ = MakeStation(), b_ = MakeStation();
};

TEST_P(SlabTest, PayloadsInASlabArriveComplete) {
  const PeerId to_b = Connect(*a_, *b_);
  const Registered slab = MakeSlab(*a_, 5 << 20);
  const struct {
    bool in_place, past_caches;
  } places[] = {{false, false}, {true, false}, {false, true}};
  for (const auto& place : places) {
    b_->postbox.read_in_place = place.in_place;
    b_->postbox.past_caches = place.past_caches;
    for (size_t size : kSizes) {
      if (size > slab.slab->memory().size()) continue;
      const auto payload = slab.slab->memory().last(size);
      const size_t before = b_->postbox.messages.size();
      bool done = false;
      a_->transport->Send(to_b, HeaderOf(1, size), payload, [&](const absl::Status& status) {
        EXPECT_TRUE(status.ok()) << status;
        done = true;
      });
      ASSERT_TRUE(Progress(*a_, *b_, [&] { return b_->postbox.messages.size() > before; }));
      EXPECT_TRUE(b_->postbox.messages.back().payload == absl::MakeConstSpan(payload)) << size;
      b_->postbox.leases.clear();
      ASSERT_TRUE(Progress(*a_, *b_, [&] { return done; })) << size;
    }
  }
}

TEST_P(SlabTest, ALeaseIsTheSendersMemoryAndItsEndIsTheSendersDone) {
  if (!GetParam().lends) GTEST_SKIP() << "this transport copies";
  const PeerId to_b = Connect(*a_, *b_);
  const Registered slab = MakeSlab(*a_, 300'000);
  const absl::Span<std::byte> payload = slab.slab->memory().subspan(64, 200'000);
  b_->postbox.read_in_place = true;
  int dones = 0;
  a_->transport->Send(to_b, HeaderOf(1, payload.size()), payload, [&](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    ++dones;
  });
  ASSERT_TRUE(Progress(*a_, *b_, [&] { return !b_->postbox.messages.empty(); }));
  ASSERT_TRUE(b_->postbox.leases[0]);
  const absl::Span<const std::byte> lent = b_->postbox.messages[0].payload;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(lent.data()) % 64, 0u);
  for (size_t at : {size_t{0}, payload.size() / 2, payload.size() - 1}) {
    payload[at] ^= std::byte{0xff};  // the reader sees the change, because nothing was copied
    EXPECT_EQ(lent[at], payload[at]);
  }
  for (int i = 0; i < 1000; ++i) a_->transport->Progress();
  EXPECT_EQ(dones, 0);

  b_->postbox.leases.clear();

  ASSERT_TRUE(Progress(*a_, *b_, [&] { return dones == 1; }));
}

TEST_P(SlabTest, LeasesEndInAnyOrder) {
  constexpr size_t kBytes = 20'000;
  const PeerId to_b = Connect(*a_, *b_);
  const Registered slab = MakeSlab(*a_, 5 * kBytes);
  b_->postbox.read_in_place = true;
  std::vector<int> dones;
  for (int i = 0; i < 5; ++i) {
    a_->transport->Send(to_b, HeaderOf(i, kBytes), slab.slab->memory().subspan(i * kBytes, kBytes),
                        [&dones, i](const absl::Status& status) {
                          EXPECT_TRUE(status.ok()) << status;
                          dones.push_back(i);
                        });
  }
  ASSERT_TRUE(Progress(*a_, *b_, [&] { return b_->postbox.messages.size() == 5; }));
  for (size_t ended = 0; ended < 5; ++ended) {
    const int order[] = {3, 1, 4, 0, 2};
    b_->postbox.leases[order[ended]] = {};
    ASSERT_TRUE(Progress(*a_, *b_, [&] { return dones.size() > ended; }));
    if (GetParam().lends) {
      EXPECT_EQ(dones.back(), order[ended]);
    }
  }
}

TEST_P(SlabTest, APayloadThatIsNotReadInPlaceIsCopiedAndDone) {
  const PeerId to_b = Connect(*a_, *b_);
  const Registered slab = MakeSlab(*a_, 100'000);
  int dones = 0;
  a_->transport->Send(to_b, HeaderOf(1, 100'000), slab.slab->memory(),
                      [&](const absl::Status&) { ++dones; });
  ASSERT_TRUE(Progress(*a_, *b_, [&] { return dones == 1 && b_->postbox.messages.size() == 1; }));
  EXPECT_FALSE(b_->postbox.leases[0]);
}

TEST_P(SlabTest, ADroppedPayloadInASlabIsDone) {
  const PeerId to_b = Connect(*a_, *b_);
  const Registered slab = MakeSlab(*a_, 100'000);
  b_->postbox.refuse_payloads = true;
  int dones = 0;
  a_->transport->Send(to_b, HeaderOf(1, 100'000), slab.slab->memory(),
                      [&](const absl::Status&) { ++dones; });
  ASSERT_TRUE(Progress(*a_, *b_, [&] { return dones == 1; }));
  EXPECT_TRUE(b_->postbox.messages.empty());
}

TEST_P(SlabTest, MemoryOutsideASlabIsCopiedEvenForInPlaceReaders) {
  const PeerId to_b = Connect(*a_, *b_);
  const std::vector<std::byte> payload = PatternOf(2, 300'000);
  b_->postbox.read_in_place = true;
  int dones = 0;
  a_->transport->Send(to_b, HeaderOf(1, payload.size()), payload,
                      [&](const absl::Status&) { ++dones; });
  ASSERT_TRUE(Progress(*a_, *b_, [&] { return dones == 1 && b_->postbox.messages.size() == 1; }));
  EXPECT_FALSE(b_->postbox.leases[0]);
  EXPECT_TRUE(b_->postbox.messages[0].payload == absl::MakeConstSpan(payload));
}

TEST_P(SlabTest, ALentPayloadStaysReadableWhenItsSenderIsGone) {
  const PeerId to_b = Connect(*a_, *b_), to_a = AwaitJoin(*a_, *b_);
  Registered slab = MakeSlab(*a_, 200'000);
  b_->postbox.read_in_place = true;
  a_->transport->Send(to_b, HeaderOf(1, 200'000), slab.slab->memory(), nullptr);
  ASSERT_TRUE(Progress(*a_, *b_, [&] { return !b_->postbox.messages.empty(); }));

  a_->transport.reset();
  slab = {};
  ASSERT_TRUE(ProgressUntil({b_->transport.get()}, [&] { return !b_->postbox.losses.empty(); }));

  EXPECT_EQ(b_->postbox.losses[0].first, to_a);
  EXPECT_TRUE(b_->postbox.messages[0].payload == absl::MakeConstSpan(PatternOf(1, 200'000)));
  b_->postbox.leases.clear();
  while (b_->transport->Progress() > 0) {
  }
}

TEST_P(SlabTest, DisconnectLeavesLentPayloadsToTheirReader) {
  const PeerId first = Connect(*a_, *b_);
  const Registered slab = MakeSlab(*a_, 200'000);
  b_->postbox.read_in_place = true;
  int dones = 0;
  auto count = [&](const absl::Status&) { ++dones; };
  a_->transport->Send(first, HeaderOf(1, 200'000), slab.slab->memory(), count);
  ASSERT_TRUE(Progress(*a_, *b_, [&] { return !b_->postbox.messages.empty(); }));

  a_->transport->Disconnect(first);
  const PeerId second = Connect(*a_, *b_);
  a_->transport->Send(second, HeaderOf(2, 0), {}, nullptr);
  ASSERT_TRUE(Progress(*a_, *b_, [&] { return b_->postbox.messages.size() == 2; }));

  if (GetParam().lends) {
    EXPECT_EQ(dones, 0);
  }
  EXPECT_TRUE(b_->postbox.messages[0].payload == absl::MakeConstSpan(PatternOf(1, 200'000)));
  b_->postbox.leases.clear();
  ASSERT_TRUE(Progress(*a_, *b_, [&] { return dones == 1; }));
  EXPECT_TRUE(a_->postbox.losses.empty());
}

TEST_P(SlabTest, AThousandRandomMessagesArriveOnce) {
  constexpr uint32_t kMessages = 1000;
  constexpr size_t kSlabBytes = 1 << 20;
  const uint32_t seed = 2024;
  std::mt19937 random(seed);
  b_->postbox.read_in_place = true;
  const PeerId to_b = Connect(*a_, *b_), to_a = AwaitJoin(*a_, *b_);
  const Registered slab_a = MakeSlab(*a_, kSlabBytes), slab_b = MakeSlab(*b_, kSlabBytes);
  const std::vector<std::byte> heap = PatternOf(1, kSlabBytes);
  const absl::Span<const std::byte> a_bytes = slab_a.slab->memory(),
                                    b_bytes = slab_b.slab->memory();
  std::vector<size_t> offsets, sizes;
  uint32_t dones = 0;
  auto count = [&dones](const absl::Status& status) { dones += status.ok() ? 1 : 0; };
  for (uint32_t i = 0; i < kMessages; ++i) {
    sizes.push_back(random() % (random() % 4 == 0 ? 300'000 : 6000));
    offsets.push_back(random() % (kSlabBytes - sizes[i]));
    const auto part = [&](absl::Span<const std::byte> memory) {
      return memory.subspan(offsets[i], sizes[i]);
    };
    const bool from_heap = random() % 3 == 0;
    a_->transport->Send(to_b, HeaderOf(i, sizes[i]), part(from_heap ? heap : a_bytes), count);
    b_->transport->Send(to_a, HeaderOf(i, sizes[i]), part(from_heap ? heap : b_bytes), count);
    if (random() % 4 == 0) a_->transport->Progress();
    if (random() % 4 == 0) b_->transport->Progress();
    if (random() % 16 == 0 && !b_->postbox.leases.empty()) {
      b_->postbox.leases[random() % b_->postbox.leases.size()] = {};
    }
  }
  ASSERT_TRUE(Progress(*a_, *b_, [&] {
    return a_->postbox.messages.size() >= kMessages && b_->postbox.messages.size() >= kMessages;
  }));
  for (Station* station : {a_.get(), b_.get()}) {
    std::vector<int> seen(kMessages);
    for (const Postbox::Message& message : station->postbox.messages) {
      const uint32_t i = message.header.chunk;
      ASSERT_EQ(++seen[i], 1) << "seed " << seed << ", message " << i;
      ASSERT_TRUE(message.payload == absl::MakeConstSpan(heap).subspan(offsets[i], sizes[i]))
          << "seed " << seed << ", message " << i;
    }
  }
  b_->postbox.leases.clear();
  ASSERT_TRUE(Progress(*a_, *b_, [&] { return dones == 2 * kMessages; }));
}

TEST_P(SlabTest, SendsBeyondTheAvailableRoomWait) {
  constexpr uint32_t kMessages = 5000;
  const PeerId to_b = Connect(*a_, *b_);
  const Registered slab = MakeSlab(*a_, 1 << 20);
  const std::vector<std::byte> heap = PatternOf(3, 3000);
  uint32_t dones = 0;
  auto count = [&dones](const absl::Status& status) { dones += status.ok() ? 1 : 0; };
  for (uint32_t i = 0; i < kMessages; ++i) {
    const auto payload =
        i % 2 == 0 ? absl::MakeConstSpan(heap) : slab.slab->memory().subspan(i * 64, 3000);
    a_->transport->Send(to_b, HeaderOf(i, 3000), payload, count);
  }
  ASSERT_TRUE(Progress(*a_, *b_, [&] {
    return dones == kMessages && b_->postbox.messages.size() >= kMessages;
  })) << dones;
  EXPECT_EQ(b_->postbox.messages.size(), kMessages);
}

TEST_P(SlabTest, SlabsComeAndGoOnOneConnection) {
  const PeerId to_b = Connect(*a_, *b_);
  for (uint32_t round = 1; round <= 50; ++round) {
    const Registered slab = MakeSlab(*a_, 100'000);
    bool done = false;
    a_->transport->Send(to_b, HeaderOf(round, 100'000), slab.slab->memory(),
                        [&](const absl::Status& status) { done = status.ok(); });
    ASSERT_TRUE(Progress(*a_, *b_, [&] { return done && b_->postbox.messages.size() == round; }));
    EXPECT_TRUE(b_->postbox.messages.back().payload == absl::MakeConstSpan(slab.slab->memory()));
  }
}

std::string NameOf(const testing::TestParamInfo<FabricCase>& param) { return param.param.name; }

const auto kFabrics = testing::Values(
    FabricCase{"InProcess", [] { return std::make_unique<InProcessFabric>(); }},
    FabricCase{"SharedMemory", [] { return SharedMemory(/*spin=*/false); }},
    FabricCase{"SharedMemorySpinning", [] { return SharedMemory(/*spin=*/true); }},
    FabricCase{"Tcp", [] { return Tcp(/*spin=*/false); }, /*lends=*/false},
    FabricCase{"TcpSpinning", [] { return Tcp(/*spin=*/true); }, /*lends=*/false},
    FabricCase{"TcpWithChecksums",
               [] { return Tcp(/*spin=*/false, {.checksums = Checksums::kOn}); }, /*lends=*/false},
    FabricCase{"TcpEncrypted",
               [] { return Tcp(/*spin=*/false, {.security = DataSecurity::kEncrypt}); },
               /*lends=*/false},
    FabricCase{"Ucx", [] { return Ucx(/*spin=*/false); }, /*lends=*/false},
    FabricCase{"UcxSpinning", [] { return Ucx(/*spin=*/true); }, /*lends=*/false},
    FabricCase{"Routing", [] { return Routing({.polling = {.share = 1}}); }},
    FabricCase{"RoutingSpinning", [] { return Routing({.polling = {.regardless = true}}); }},
    FabricCase{"RoutingOverTcp", [] { return Routing({.links = LinkKind::kTcp}); },
               /*lends=*/false});
INSTANTIATE_TEST_SUITE_P(Fabrics, TransportTest, kFabrics, NameOf);
INSTANTIATE_TEST_SUITE_P(Fabrics, SlabTest, kFabrics, NameOf);

TEST(InProcessNetworkTest, AFaultDropsDuplicatesAndHoldsMessages) {
  InProcessNetwork network;
  auto a = network.MakeTransport(), b = network.MakeTransport();
  Postbox inbox_a, inbox_b;
  a->SetReceiver(&inbox_a);
  b->SetReceiver(&inbox_b);
  using Fate = InProcessNetwork::Fate;
  network.SetFault([](const WireHeader& header) {
    const Fate fates[] = {Fate::kDeliver, Fate::kDrop, Fate::kDuplicate, Fate::kHold};
    return fates[header.chunk];
  });
  OpenTestSession(*b);
  const PeerId to_b = *a->Connect(b->address(), CredentialsOf(0));
  int dones = 0;
  for (uint32_t i : {3, 2, 1, 0}) {
    std::vector<std::byte> payload = PatternOf(i, 100);
    a->Send(to_b, HeaderOf(i, 100), payload,
            [&](const absl::Status& status) { dones += status.ok(); });
    if (i != 0) continue;
    ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return dones == 4; }));
  }
  network.ReleaseHeld();
  ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return inbox_b.messages.size() == 4; }));

  const uint32_t expected[] = {2, 2, 0, 3};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(inbox_b.messages[i].header.chunk, expected[i]);
    EXPECT_TRUE(inbox_b.messages[i].payload == absl::MakeConstSpan(PatternOf(expected[i], 100)));
  }
}

TEST(InProcessNetworkTest, AFaultLosesAPayloadInTransit) {
  InProcessNetwork network;
  auto a = network.MakeTransport(), b = network.MakeTransport();
  Postbox inbox_a, inbox_b;
  a->SetReceiver(&inbox_a);
  b->SetReceiver(&inbox_b);
  OpenTestSession(*b);
  network.SetFault([](const WireHeader& header) {
    return header.chunk == 1 ? InProcessNetwork::Fate::kBreak : InProcessNetwork::Fate::kDeliver;
  });
  const PeerId to_b = *a->Connect(b->address(), CredentialsOf(0));
  const std::vector<std::byte> payload = PatternOf(1, 100);
  for (uint32_t i : {0, 1, 2}) a->Send(to_b, HeaderOf(i, 100), payload, nullptr);
  ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return inbox_b.messages.size() == 2; }));
  ASSERT_EQ(inbox_b.lost_payloads.size(), 1u);
  EXPECT_EQ(inbox_b.lost_payloads[0].first, inbox_b.joined[0].first);
  EXPECT_EQ(inbox_b.lost_payloads[0].second.chunk, 1u);
}

TEST(InProcessNetworkTest, MessagesOfAllSendersArriveInTheOrderOfSending) {
  InProcessNetwork network;
  auto a = network.MakeTransport(), b = network.MakeTransport(), c = network.MakeTransport();
  Postbox postbox;
  c->SetReceiver(&postbox);
  OpenTestSession(*c);
  const PeerId a_to_c = *a->Connect(c->address(), CredentialsOf(0));
  const PeerId b_to_c = *b->Connect(c->address(), CredentialsOf(1));
  for (uint32_t i = 0; i < 100; ++i) {
    (i % 3 == 0 ? a : b)->Send(i % 3 == 0 ? a_to_c : b_to_c, HeaderOf(i, 0), {}, nullptr);
  }
  while (c->Progress() > 0) {
  }
  ASSERT_EQ(postbox.messages.size(), 100u);
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(postbox.messages[i].header.chunk, i);
}

}  // namespace
}  // namespace muster::transport_test
