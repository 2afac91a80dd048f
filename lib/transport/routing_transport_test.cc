// Which way a peer is reached, and both ways at once. What every Transport must do is in
// transport_test.cc.
#include "lib/transport/routing_transport.h"

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/transport/postbox.h"
#include "lib/transport/shared_slab.h"
#include "lib/transport/transport.h"
#include "lib/transport/ucx_transport.h"
#include "lib/transport/wire.h"

namespace muster {
namespace {

using testing::HasSubstr;

struct Station {
  explicit Station(RoutingTransportOptions options) {
    auto made = RoutingTransport::Create(options);
    EXPECT_TRUE(made.ok()) << made.status();
    transport = *std::move(made);
    transport->SetReceiver(&postbox);
  }
  explicit Station(LinkKind links) : Station(RoutingTransportOptions{.links = links}) {}

  Postbox postbox;  // outlives the transport
  std::unique_ptr<RoutingTransport> transport;
};

PeerId Connect(Station& from, Station& to) {
  auto peer = from.transport->Connect(to.transport->address());
  EXPECT_TRUE(peer.ok()) << peer.status();
  return *peer;
}

// Sends a payload of `size` and waits until it is there.
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

TEST(RoutingTransportTest, PeersOnOneHostMeetOverSharedMemory) {
  Station a(LinkKind::kAuto), b(LinkKind::kAuto);
  const PeerId to_b = Connect(a, b);
  for (size_t size : {size_t{1}, size_t{4096}, size_t{4} << 20}) ExpectArrival(a, to_b, b, size);
  EXPECT_EQ(a.transport->Describe(to_b).transport, "shm");
}

TEST(RoutingTransportTest, WhoeverDoesNotWantSharedMemoryIsReachedOverUcx) {
  for (auto [mine, theirs] :
       {std::pair(LinkKind::kAuto, LinkKind::kUcx), std::pair(LinkKind::kUcx, LinkKind::kAuto)}) {
    Station a(mine), b(theirs);
    const PeerId to_b = Connect(a, b);
    ExpectArrival(a, to_b, b, 100'000);
    const LinkDescription link = a.transport->Describe(to_b);
    EXPECT_EQ(link.transport, "ucx");
    EXPECT_EQ(link.network, "tcp");
    EXPECT_FALSE(link.device.empty());
    EXPECT_EQ(link.connections, 1);
    EXPECT_THAT(a.transport->name(), HasSubstr("ucx:tcp"));
  }
}

TEST(RoutingTransportTest, PeersWithNothingInCommonAreToldWhatToTry) {
  Station shared(LinkKind::kSharedMemory), ucx(LinkKind::kUcx);
  const absl::Status to_ucx = shared.transport->Connect(ucx.transport->address()).status();
  EXPECT_EQ(to_ucx.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(to_ucx.message()), HasSubstr("--transport=shm, the peer only UCX"));
  EXPECT_THAT(std::string(to_ucx.message()), HasSubstr("--transport=auto"));
  const absl::Status to_shared = ucx.transport->Connect(shared.transport->address()).status();
  EXPECT_EQ(to_shared.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(to_shared.message()), HasSubstr("the peer only shared memory"));
}

TEST(RoutingTransportTest, RdmaThatIsNotThereIsAnErrorThatSaysWhatItGotAndWhatToTry) {
  Station a(LinkKind::kRdma), b(LinkKind::kAuto);
  const absl::StatusOr<PeerId> peer = a.transport->Connect(b.transport->address());
  if (peer.ok()) GTEST_SKIP() << "this machine has RDMA: " << a.transport->name();
  EXPECT_EQ(peer.status().code(), absl::StatusCode::kFailedPrecondition);
  for (const char* part : {"--transport=rdma", "over tcp", "ucx_info -d", "--allow_tcp_fallback"}) {
    EXPECT_THAT(std::string(peer.status().message()), HasSubstr(part));
  }
  a.transport->Progress();
  EXPECT_TRUE(a.postbox.losses.empty());
}

TEST(RoutingTransportTest, AUcxTlsThatNamesRdmaAsksForItToo) {
  setenv("UCX_TLS", "rc,tcp", /*overwrite=*/1);
  Station a(LinkKind::kUcx), b(LinkKind::kUcx);
  const absl::StatusOr<PeerId> peer = a.transport->Connect(b.transport->address());
  unsetenv("UCX_TLS");
  if (peer.ok()) GTEST_SKIP() << "this machine has RDMA: " << a.transport->name();
  EXPECT_EQ(peer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(peer.status().message()), HasSubstr("UCX_TLS=rc,tcp"));
}

TEST(RoutingTransportTest, RdmaThatMayFallBackGoesOnOverTcp) {
  Station a({.links = LinkKind::kRdma, .allow_tcp_fallback = true}), b(LinkKind::kAuto);
  ExpectArrival(a, Connect(a, b), b, 100'000);
}

TEST(RoutingTransportTest, BothWaysAtOnceKeepTheirPeersApart) {
  Station hub(LinkKind::kAuto), near(LinkKind::kAuto), far(LinkKind::kUcx);
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
  Station hub(LinkKind::kAuto), near(LinkKind::kAuto), far(LinkKind::kUcx);
  const PeerId near_to_hub = Connect(near, hub), far_to_hub = Connect(far, hub);
  const std::vector<std::byte> large = PatternOf(1, 1'000'000);
  far.transport->Send(far_to_hub, HeaderOf(7, large.size()), large, nullptr);
  bool there = false;
  hub.postbox.on_message = [&](const Postbox::Message& message) {
    there |= message.header.chunk == 7;
  };
  int turns = 0;
  for (; !there && turns < 1'000'000; ++turns) {  // the hub always has something from near
    near.transport->Send(near_to_hub, HeaderOf(1, 0), {}, nullptr);
    near.transport->Progress();
    far.transport->Progress();
    hub.transport->Progress();
  }
  EXPECT_TRUE(there) << "after " << turns << " turns";
}

TEST(RoutingTransportTest, ASleeperIsWokenByEitherWay) {
  Station sleeper(LinkKind::kAuto), near(LinkKind::kAuto), far(LinkKind::kUcx);
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

TEST(RoutingTransportTest, RegisteredSlabsServeBothWays) {
  Station a(LinkKind::kAuto), near(LinkKind::kAuto), far(LinkKind::kUcx);
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

TEST(RoutingTransportTest, SeveralConnectionsCarryOnePeersMessages) {
  Station a({.links = LinkKind::kUcx, .connections = 4}), b(LinkKind::kUcx);
  const PeerId to_b = Connect(a, b);
  EXPECT_EQ(a.transport->Describe(to_b).connections, 4);
  std::vector<std::vector<std::byte>> payloads;
  for (int i = 0; i < 40; ++i) payloads.push_back(PatternOf(i, i % 3 == 0 ? 100 : 300'000));
  for (int i = 0; i < 40; ++i) {
    a.transport->Send(to_b, HeaderOf(i, payloads[i].size()), payloads[i], nullptr);
  }
  ASSERT_TRUE(ProgressUntil({a.transport.get(), b.transport.get()},
                            [&] { return b.postbox.messages.size() == 40; }));
  std::vector<int> seen(40);
  for (const Postbox::Message& message : b.postbox.messages) {
    ++seen[message.header.chunk];
    EXPECT_TRUE(message.payload == absl::MakeConstSpan(payloads[message.header.chunk]));
  }
  EXPECT_EQ(seen, std::vector<int>(40, 1));

  b.transport.reset();
  ASSERT_TRUE(ProgressUntil({a.transport.get()}, [&] { return !a.postbox.losses.empty(); }));
  for (int i = 0; i < 1000; ++i) a.transport->Progress();
  EXPECT_EQ(a.postbox.losses.size(), 1u);
}

TEST(RoutingTransportTest, KindsOfLinksAreReadFromWords) {
  EXPECT_EQ(*ParseLinkKind("auto"), LinkKind::kAuto);
  EXPECT_EQ(*ParseLinkKind("shm"), LinkKind::kSharedMemory);
  EXPECT_EQ(*ParseLinkKind("ucx"), LinkKind::kUcx);
  EXPECT_EQ(*ParseLinkKind("rdma"), LinkKind::kRdma);
  EXPECT_EQ(ParseLinkKind("tcp").status().message(), "must be auto, shm, ucx or rdma (is 'tcp')");
}

}  // namespace
}  // namespace muster
