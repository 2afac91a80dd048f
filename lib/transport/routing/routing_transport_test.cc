// The choice of the backend for each peer, and several backends at once. transport_test.cc tests
// what every Transport must do.
#include "lib/transport/routing/routing_transport.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/transport/core/address_envelope.h"
#include "lib/transport/core/shared_slab.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/shm/local_address.h"
#include "lib/transport/tcp/data_port.h"
#include "lib/transport/testing/postbox.h"

namespace muster::routing_transport_test {
namespace {

using testing::HasSubstr;

struct Station {
  explicit Station(LinkKind links) {
    auto port = DataPort::Open({.bind_host = "127.0.0.1"});
    EXPECT_TRUE(port.ok()) << port.status();
    auto made = RoutingTransport::Create({.links = links, .port = *std::move(port)});
    EXPECT_TRUE(made.ok()) << made.status();
    transport = *std::move(made);
    transport->SetReceiver(&postbox);
    OpenTestSession(*transport);
  }

  Postbox postbox;  // must outlive the transport
  std::unique_ptr<RoutingTransport> transport;
};

PeerId Connect(Station& from, Station& to) {
  auto peer = from.transport->Connect(to.transport->address(), CredentialsOf(0));
  EXPECT_TRUE(peer.ok()) << peer.status();
  return *peer;
}

// Sends a payload of `size` bytes and waits until it has arrived.
void ExpectArrival(Station& from, PeerId peer, Station& to, size_t size) {
  const std::vector<std::byte> payload = PatternOf(size, size);
  const size_t before = to.postbox.messages.size();
  bool done = false;
  from.transport->Send(peer, HeaderOf(1, size), payload, [&](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    done = true;
  });
  ASSERT_TRUE(ProgressUntil({from.transport.get(), to.transport.get()},
                            [&] { return done && to.postbox.messages.size() > before; }))
      << size << " bytes";
  EXPECT_TRUE(to.postbox.messages.back().payload == absl::MakeConstSpan(payload)) << size;
}

TEST(RoutingTransportTest, PeersOnOneHostUseSharedMemory) {
  Station a(LinkKind::kAuto), b(LinkKind::kAuto);
  const PeerId to_b = Connect(a, b);
  for (size_t size : {size_t{1}, size_t{4096}, size_t{4} << 20}) ExpectArrival(a, to_b, b, size);
  const LinkDescription link = a.transport->Describe(to_b);
  EXPECT_EQ(link.transport, "shm");
  EXPECT_EQ(link.security, "host");
  EXPECT_EQ(link.fallback, "");
}

// Returns the peer's address after `move` has changed the part for shared memory.
std::string Moved(absl::string_view address, void (*move)(LocalAddress&)) {
  std::string parts(*OpenAddress("MUR2", address, "address"));
  // The first part is the address for shared memory.
  const size_t bytes = static_cast<uint8_t>(parts[1]);
  LocalAddress moved = *LocalAddress::Decode(parts.substr(3, bytes));
  move(moved);
  parts.replace(3, bytes, moved.Encode());
  return SealAddress("MUR2", parts);
}

TEST(RoutingTransportTest, TheObstacleToSharedMemoryOnOneHostIsReported) {
  Station a(LinkKind::kAuto), b(LinkKind::kAuto);
  const auto fallback = [&](void (*move)(LocalAddress&)) {
    auto to_b = a.transport->Connect(Moved(b.transport->address(), move), CredentialsOf(0));
    EXPECT_TRUE(to_b.ok()) << to_b.status();
    ExpectArrival(a, *to_b, b, 1000);
    const LinkDescription link = a.transport->Describe(*to_b);
    EXPECT_EQ(link.transport, "tcp");
    EXPECT_EQ(link.security, "auth");
    a.transport->Disconnect(*to_b);
    return link.fallback;
  };
  EXPECT_EQ(fallback([](LocalAddress& address) { ++address.network_inode; }),
            "one host, but another network namespace");
  EXPECT_EQ(fallback([](LocalAddress& address) { ++address.user; }), "one host, but another user");
  EXPECT_EQ(fallback([](LocalAddress& address) { address.boot_id[0] ^= 1; }), "")
      << "a peer on another host needs no fallback";
}

TEST(RoutingTransportTest, APeerWithoutSharedMemoryIsReachedOverTcp) {
  for (auto [mine, theirs] :
       {std::pair(LinkKind::kAuto, LinkKind::kTcp), std::pair(LinkKind::kTcp, LinkKind::kAuto)}) {
    Station a(mine), b(theirs);
    const PeerId to_b = Connect(a, b);
    ExpectArrival(a, to_b, b, 100'000);
    const LinkDescription link = a.transport->Describe(to_b);
    EXPECT_EQ(link.transport, "tcp");
    EXPECT_EQ(link.connections, 1);
    EXPECT_THAT(a.transport->name(), HasSubstr("tcp"));
    // The answer uses the same link, whatever the other side would have chosen.
    const PeerId back = b.postbox.joined[0].first;
    EXPECT_EQ(b.transport->Describe(back).transport, "tcp");
    ExpectArrival(b, back, a, 100'000);
  }
}

TEST(RoutingTransportTest, PeersWithNothingInCommonAreToldWhatToTry) {
  Station shared(LinkKind::kSharedMemory), tcp(LinkKind::kTcp);
  const absl::Status to_tcp =
      shared.transport->Connect(tcp.transport->address(), CredentialsOf(0)).status();
  EXPECT_EQ(to_tcp.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(to_tcp.message()), HasSubstr("--transport=shm, the peer has tcp"));
  EXPECT_THAT(std::string(to_tcp.message()), HasSubstr("--transport=auto"));
  const absl::Status to_shared =
      tcp.transport->Connect(shared.transport->address(), CredentialsOf(0)).status();
  EXPECT_EQ(to_shared.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(to_shared.message()), HasSubstr("the peer has shm"));
}

TEST(RoutingTransportTest, RdmaThatIsMissingIsAnErrorWithAdvice) {
  const auto made = RoutingTransport::Create({.links = LinkKind::kRdma});
  if (made.ok()) GTEST_SKIP() << "this machine has RDMA: " << (*made)->name();
  EXPECT_EQ(made.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("--transport=rdma"));
}

TEST(RoutingTransportTest, PeersOfBothBackendsAreKeptApart) {
  Station hub(LinkKind::kAuto), near(LinkKind::kAuto), far(LinkKind::kTcp);
  const PeerId to_near = Connect(hub, near), to_far = Connect(hub, far);
  EXPECT_NE(to_near, to_far);
  for (int i = 0; i < 50; ++i) {
    ExpectArrival(hub, to_near, near, 5000 + i);
    ExpectArrival(hub, to_far, far, 50'000 + i);
  }
  EXPECT_EQ(near.postbox.messages.size(), 50u);
  EXPECT_EQ(far.postbox.messages.size(), 50u);

  near.transport.reset();
  ASSERT_TRUE(ProgressUntil({hub.transport.get()}, [&] { return !hub.postbox.losses.empty(); }));
  EXPECT_EQ(hub.postbox.losses[0].first, to_near);
  ExpectArrival(hub, to_far, far, 1000);
  far.transport.reset();
  ASSERT_TRUE(ProgressUntil({hub.transport.get()}, [&] { return hub.postbox.losses.size() == 2; }));
  EXPECT_EQ(hub.postbox.losses[1].first, to_far);
}

TEST(RoutingTransportTest, BusySharedMemoryDoesNotStarveTheNetwork) {
  Station hub(LinkKind::kAuto), near(LinkKind::kAuto), far(LinkKind::kTcp);
  const PeerId near_to_hub = Connect(near, hub), far_to_hub = Connect(far, hub);
  const std::vector<std::byte> large = PatternOf(1, 1'000'000);
  far.transport->Send(far_to_hub, HeaderOf(7, large.size()), large, nullptr);
  bool there = false;
  hub.postbox.on_message = [&](const Postbox::Message& message) {
    there |= message.header.chunk == 7;
  };
  int turns = 0;
  for (; !there && turns < 1'000'000; ++turns) {  // the hub always has messages from near
    near.transport->Send(near_to_hub, HeaderOf(1, 0), {}, nullptr);
    near.transport->Progress();
    far.transport->Progress();
    hub.transport->Progress();
  }
  EXPECT_TRUE(there) << "after " << turns << " turns";
}

TEST(RoutingTransportTest, ASleeperIsWokenByEitherBackend) {
  Station sleeper(LinkKind::kAuto), near(LinkKind::kAuto), far(LinkKind::kTcp);
  const PeerId near_peer = Connect(near, sleeper), far_peer = Connect(far, sleeper);
  for (auto [from, peer] : {std::pair(&near, near_peer), std::pair(&far, far_peer)}) {
    const size_t before = sleeper.postbox.messages.size();
    std::jthread sending([from = from, peer = peer](std::stop_token stop) {
      from->transport->Send(peer, HeaderOf(1, 0), {}, nullptr);
      while (!stop.stop_requested()) {
        if (from->transport->Progress() == 0) from->transport->Wait(absl::Milliseconds(1));
      }
    });
    while (sleeper.postbox.messages.size() == before) {
      if (sleeper.transport->Progress() == 0) sleeper.transport->Wait(absl::InfiniteDuration());
    }
  }
}

TEST(RoutingTransportTest, RegisteredSlabsWorkWithBothBackends) {
  Station a(LinkKind::kAuto), near(LinkKind::kAuto), far(LinkKind::kTcp);
  auto slab = SharedSlab::Allocate(1 << 20);
  ASSERT_TRUE(slab.ok()) << slab.status();
  auto registration = a.transport->RegisterMemory((*slab)->memory());
  ASSERT_TRUE(registration.ok()) << registration.status();
  for (Station* to : {&near, &far}) {
    a.transport->Send(Connect(a, *to), HeaderOf(1, 1 << 20), (*slab)->memory(), nullptr);
    ASSERT_TRUE(ProgressUntil({a.transport.get(), to->transport.get()},
                              [&] { return to->postbox.messages.size() == 1; }));
  }
}

TEST(RoutingTransportTest, LinkKindsAreParsedFromWords) {
  EXPECT_EQ(*ParseLinkKind("auto"), LinkKind::kAuto);
  EXPECT_EQ(*ParseLinkKind("shm"), LinkKind::kSharedMemory);
  EXPECT_EQ(*ParseLinkKind("tcp"), LinkKind::kTcp);
  EXPECT_EQ(*ParseLinkKind("rdma"), LinkKind::kRdma);
  EXPECT_EQ(ParseLinkKind("ucx").status().message(), "must be auto, shm, tcp or rdma (is 'ucx')");
}

}  // namespace
}  // namespace muster::routing_transport_test
