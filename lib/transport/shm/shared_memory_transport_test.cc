// Shared memory between processes that die, and against hostile peers. transport_test.cc tests what
// every Transport must do.
#include "lib/transport/shm/shared_memory_transport.h"

#include <glog/logging.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/transport/core/doorbell.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/file_descriptor.h"
#include "lib/transport/core/sealed_memory.h"
#include "lib/transport/core/shared_slab.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "lib/transport/shm/control_socket.h"
#include "lib/transport/shm/local_address.h"
#include "lib/transport/shm/message_ring.h"
#include "lib/transport/testing/child_process.h"
#include "lib/transport/testing/no_descriptors_left.h"
#include "lib/transport/testing/postbox.h"

namespace muster::shared_memory_transport_test {
namespace {

using Kind = ControlPacket::Kind;

// A transport alone on its loop, with the tests' session open.
class Member {
 public:
  explicit Member(MessageReceiver& receiver, SharedMemoryTransportOptions options = {})
      : loop_(*EventLoop::Create()),
        transport_(*SharedMemoryTransport::Create(loop_.get(), options)) {
    transport_->SetReceiver(&receiver);
    OpenTestSession(*transport_);
  }

  SharedMemoryTransport* operator->() const { return transport_.get(); }
  SharedMemoryTransport& operator*() const { return *transport_; }
  SharedMemoryTransport* get() const { return transport_.get(); }
  EventLoop& loop() const { return *loop_; }
  void reset() { transport_.reset(); }

  PeerId Connect(const Member& to, uint32_t index = 0) const {
    return *transport_->Connect(to->address(), CredentialsOf(index));
  }
  // Prepares to sleep, as Wait() does. Returns false if something keeps the transport awake.
  bool FallAsleep() const {
    for (int tries = 0; tries < 100; ++tries) {
      if (transport_->PrepareToSleep() && loop_->Look() == 0) return true;
      transport_->Progress();
    }
    return false;
  }
  // Whether a sleep would have ended.
  bool IsWoken() const { return loop_->Look() > 0; }

 private:
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<SharedMemoryTransport> transport_;
};

// Two transports, one of which has connected to the other and been accepted: the link is open.
struct Pair {
  Pair() : to_b(a.Connect(b)) {
    CHECK(ProgressUntil({a.get(), b.get()}, [&] { return !b_box.joined.empty(); }));
    to_a = b_box.joined[0].first;
    a.loop().Look();
    a->Progress();
  }
  bool Progress(const std::function<bool()>& until) {
    return ProgressUntil({a.get(), b.get()}, until);
  }

  Postbox a_box, b_box;
  Member a{a_box}, b{b_box};
  PeerId to_b, to_a;
};

struct RegisteredSlab {
  RegisteredSlab(Transport& transport, size_t size) : slab(*SharedSlab::Allocate(size)) {
    std::ranges::copy(PatternOf(1, size), slab->memory().begin());
    registration = *transport.RegisterMemory(slab->memory());
  }
  std::shared_ptr<SharedSlab> slab;
  std::unique_ptr<Transport::MemoryRegistration> registration;
};

// ---- Roles of this program when it starts itself. Each prints its address, waits until the parent
// connects, and ends when stdin closes.

constexpr size_t kLentBytes = 3 << 20;

class Role {
 public:
  Role() : transport(postbox) {
    std::cout << absl::BytesToHexString(transport->address()) << std::endl;
  }

  PeerId AwaitParent() {
    while (postbox.joined.empty()) {
      if (transport->Progress() == 0) transport->Wait(absl::InfiniteDuration());
    }
    return postbox.joined[0].first;
  }

  int RunUntilStdinEnds() {
    std::jthread watching([this] {
      for (std::string line; std::getline(std::cin, line);) {
      }
      ended = true;
      transport->Wake();
    });
    while (!ended && postbox.losses.empty()) {
      if (transport->Progress() == 0) transport->Wait(absl::InfiniteDuration());
    }
    postbox.leases.clear();
    return 0;
  }

  Postbox postbox;
  Member transport;
  std::atomic<bool> ended = false;
};

// Sends every message back. Reads payloads in slabs in place.
int Echo() {
  Role role;
  role.postbox.read_in_place = true;
  role.postbox.on_message = [&](const Postbox::Message& message) {
    role.transport->Send(message.from, message.header, message.payload,
                         [&role](const absl::Status&) { role.postbox.leases.clear(); });
  };
  return role.RunUntilStdinEnds();
}

// Keeps the lease of every payload.
int Hold() {
  Role role;
  role.postbox.read_in_place = true;
  role.postbox.on_message = [&](const Postbox::Message& message) {
    role.transport->Send(message.from, HeaderOf(message.header.chunk, 0), {}, nullptr);
  };
  return role.RunUntilStdinEnds();
}

// Sends a payload in its slab.
int Lend() {
  Role role;
  RegisteredSlab slab(*role.transport, kLentBytes);
  role.transport->Send(role.AwaitParent(), HeaderOf(1, kLentBytes), slab.slab->memory(), nullptr);
  return role.RunUntilStdinEnds();
}

// Sends a payload from the heap that is larger than the ring.
int Pour() {
  Role role;
  const std::vector<std::byte> payload = PatternOf(1, 64 << 20);
  role.transport->Send(role.AwaitParent(), HeaderOf(1, payload.size()), payload, nullptr);
  return role.RunUntilStdinEnds();
}

// ---- Between processes.

class BetweenProcessesTest : public testing::Test {
 protected:
  void Start(const char* role) {
    child_ = std::make_unique<ChildProcess>(role);
    peer_ = *transport_->Connect(absl::HexStringToBytes(child_->ReadLine()), CredentialsOf(0));
  }
  void Send(const WireHeader& header, absl::Span<const std::byte> payload) {
    transport_->Send(peer_, header, payload, [this](const absl::Status& status) {
      ++dones_;
      if (!status.ok()) ++failures_;
    });
  }
  bool Progress(const std::function<bool()>& until) {
    return ProgressUntil({transport_.get()}, until);
  }

  Postbox postbox_;
  Member transport_{postbox_};
  std::unique_ptr<ChildProcess> child_;
  PeerId peer_;
  int dones_ = 0, failures_ = 0;
};

TEST_F(BetweenProcessesTest, MessagesOfEverySizeComeBackFromHeapAndSlab) {
  Start("--echo");
  const RegisteredSlab slab(*transport_, 64 << 20);
  uint32_t number = 0;
  for (size_t size : {0, 1, 1024, 1025, 4096, 100'000, 1 << 20, 4 << 20, 64 << 20}) {
    for (bool in_slab : {false, true}) {
      const std::vector<std::byte> heap = PatternOf(1, size);
      const auto payload = in_slab ? slab.slab->memory().first(size) : absl::MakeConstSpan(heap);
      Send(HeaderOf(++number, size), payload);
      ASSERT_TRUE(Progress([&] { return postbox_.messages.size() == number; })) << size;
      EXPECT_EQ(postbox_.messages.back().header, HeaderOf(number, size));
      EXPECT_TRUE(postbox_.messages.back().payload == absl::MakeConstSpan(heap)) << size;
      ASSERT_TRUE(Progress([&] { return dones_ == static_cast<int>(number); }));
    }
  }
  EXPECT_EQ(failures_, 0);
  EXPECT_EQ(transport_->malformed_messages(), 0);
  child_->CloseInput();
  EXPECT_EQ(child_->Wait(), 0);
}

TEST_F(BetweenProcessesTest, SleepersWakeEachOther) {
  Start("--echo");
  const RegisteredSlab slab(*transport_, 1 << 20);
  for (uint32_t i = 1; i <= 500; ++i) {
    Send(HeaderOf(i, i % 2 == 0 ? 100 : 5000), slab.slab->memory().first(i % 2 == 0 ? 100 : 5000));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (postbox_.messages.size() < i && std::chrono::steady_clock::now() < deadline) {
      if (transport_->Progress() == 0) transport_->Wait(absl::Seconds(30));
    }
    ASSERT_EQ(postbox_.messages.size(), i);
  }
}

TEST_F(BetweenProcessesTest, AKilledPeerIsLostOnceAndPendingSendsEnd) {
  Start("--echo");
  const std::vector<std::byte> heap = PatternOf(1, 32 << 20);
  const RegisteredSlab slab(*transport_, 32 << 20);
  for (int i = 0; i < 4; ++i) {
    Send(HeaderOf(i, heap.size()), heap);
    Send(HeaderOf(i, heap.size()), slab.slab->memory());
  }
  ASSERT_TRUE(Progress([&] { return !postbox_.messages.empty(); }));

  child_->Kill();

  ASSERT_TRUE(Progress([&] { return dones_ == 8 && !postbox_.losses.empty(); }));
  for (int i = 0; i < 1000; ++i) transport_->Progress();
  ASSERT_EQ(postbox_.losses.size(), 1u);
  EXPECT_EQ(postbox_.losses[0].first, peer_);
  EXPECT_TRUE(absl::IsUnavailable(postbox_.losses[0].second)) << postbox_.losses[0].second;
  EXPECT_GT(failures_, 0);
  const int before = failures_;
  Send(HeaderOf(1, 0), {});
  EXPECT_EQ(failures_, before + 1);
  transport_->Disconnect(peer_);
}

TEST_F(BetweenProcessesTest, AnIdlePeerThatIsKilledWakesItsSleepingPeer) {
  Start("--echo");
  Send(HeaderOf(1, 0), {});
  ASSERT_TRUE(Progress([&] { return !postbox_.messages.empty(); }));
  child_->Kill();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (postbox_.losses.empty() && std::chrono::steady_clock::now() < deadline) {
    if (transport_->Progress() == 0) transport_->Wait(absl::Seconds(30));
  }
  EXPECT_EQ(postbox_.losses.size(), 1u);
}

TEST_F(BetweenProcessesTest, APayloadLentByAKilledSenderStaysReadable) {
  postbox_.read_in_place = true;
  Start("--lend");
  ASSERT_TRUE(Progress([&] { return !postbox_.messages.empty(); }));
  ASSERT_TRUE(postbox_.leases[0]);
  child_->Kill();
  ASSERT_TRUE(Progress([&] { return !postbox_.losses.empty(); }));
  EXPECT_EQ(child_->Wait(), -SIGKILL);
  EXPECT_TRUE(postbox_.messages[0].payload == absl::MakeConstSpan(PatternOf(1, kLentBytes)));
  postbox_.leases.clear();
  while (transport_->Progress() > 0) {
  }
}

TEST_F(BetweenProcessesTest, APayloadHeldByAKilledReaderIsReturnedWithAnError) {
  Start("--hold");
  const RegisteredSlab slab(*transport_, 1 << 20);
  for (uint32_t i = 0; i < 3; ++i) Send(HeaderOf(i, 1 << 20), slab.slab->memory());
  ASSERT_TRUE(Progress([&] { return postbox_.messages.size() == 3; }));
  EXPECT_EQ(dones_, 0);
  child_->Kill();
  ASSERT_TRUE(Progress([&] { return dones_ == 3 && !postbox_.losses.empty(); }));
  EXPECT_EQ(failures_, 3);
  EXPECT_EQ(postbox_.losses.size(), 1u);
}

TEST_F(BetweenProcessesTest, AMessageCutShortByDeathIsNeverDelivered) {
  bool begun = false;
  class Beginning : public Postbox {
   public:
    explicit Beginning(bool& begun) : begun_(begun) {}
    PayloadPlace PlacePayload(PeerId from, const WireHeader& header) override {
      begun_ = true;
      return Postbox::PlacePayload(from, header);
    }

   private:
    bool& begun_;
  } beginning(begun);
  transport_->SetReceiver(&beginning);
  Start("--pour");
  ASSERT_TRUE(Progress([&] { return begun; }));
  child_->Kill();
  ASSERT_TRUE(Progress([&] { return !beginning.losses.empty(); }));
  EXPECT_TRUE(beginning.messages.empty());
  ASSERT_EQ(beginning.lost_payloads.size(), 1u);
  EXPECT_EQ(beginning.lost_payloads[0].first, peer_);
  EXPECT_EQ(beginning.lost_payloads[0].second, HeaderOf(1, 64 << 20));
  EXPECT_EQ(transport_->malformed_messages(), 0);
  transport_->SetReceiver(&postbox_);
}

TEST_F(BetweenProcessesTest, AStoppedPeerIsNotLost) {
  Start("--echo");
  child_->Signal(SIGSTOP);
  const std::vector<std::byte> payload = PatternOf(1, 3 << 20);
  Send(HeaderOf(1, payload.size()), payload);
  for (int i = 0; i < 20; ++i) {
    transport_->Progress();
    transport_->Wait(absl::Milliseconds(5));
  }
  EXPECT_TRUE(postbox_.losses.empty());
  EXPECT_EQ(dones_, 0);
  child_->Signal(SIGCONT);
  ASSERT_TRUE(Progress([&] { return postbox_.messages.size() == 1; }));
  EXPECT_TRUE(postbox_.messages[0].payload == absl::MakeConstSpan(payload));
}

// ---- Addresses and memory.

TEST(SharedMemoryTransportTest, AnAddressTellsWhetherItIsLocal) {
  Postbox postbox;
  const Member transport(postbox);
  const std::string address = transport->address();
  EXPECT_TRUE(SharedMemoryTransport::IsLocal(address));
  for (const std::string& bytes : {std::string(), std::string("x"), address.substr(1)}) {
    EXPECT_FALSE(SharedMemoryTransport::IsLocal(bytes));
  }
  const LocalAddress here = *LocalAddress::Decode(address);
  EXPECT_EQ(here.Encode(), address);
  LocalAddress elsewhere = here;
  elsewhere.boot_id[0] = elsewhere.boot_id[0] == 'a' ? 'b' : 'a';
  EXPECT_FALSE(SharedMemoryTransport::IsLocal(elsewhere.Encode()));
  elsewhere = here;
  ++elsewhere.network_inode;
  EXPECT_FALSE(SharedMemoryTransport::IsLocal(elsewhere.Encode()));
  elsewhere = here;
  ++elsewhere.user;
  EXPECT_FALSE(SharedMemoryTransport::IsLocal(elsewhere.Encode()));

  auto peer = transport->Connect(elsewhere.Encode(), CredentialsOf(0));
  ASSERT_TRUE(peer.ok()) << peer.status();
  ASSERT_TRUE(ProgressUntil({transport.get()}, [&] { return postbox.losses.size() == 1; }));
  EXPECT_EQ(postbox.losses[0].first, *peer);
}

int MappingsOfSlabs() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += absl::StrContains(line, "muster-slab");
  return count;
}

TEST(SharedMemoryTransportTest, ReadersUnmapASlabThatIsNoLongerRegistered) {
  Postbox a_box, b_box;
  const Member a(a_box), b(b_box);
  const PeerId to_b = a.Connect(b);
  ASSERT_EQ(MappingsOfSlabs(), 0);
  {
    const RegisteredSlab slab(*a, 100'000);
    bool done = false;
    a->Send(to_b, HeaderOf(1, 100'000), slab.slab->memory(),
            [&](const absl::Status&) { done = true; });
    ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return done; }));
    EXPECT_EQ(MappingsOfSlabs(), 2);
  }
  EXPECT_EQ(MappingsOfSlabs(), 1);
  ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [] { return MappingsOfSlabs() == 0; }));
}

TEST(SharedMemoryTransportTest, ASlabIsWithdrawnOnlyAfterItsLastLeaseEnded) {
  Pair pair;
  pair.b_box.read_in_place = true;
  {
    const RegisteredSlab slab(*pair.a, 100'000);
    pair.a->Send(pair.to_b, HeaderOf(1, 100'000), slab.slab->memory(), nullptr);
  }
  ASSERT_TRUE(pair.Progress([&] { return pair.b_box.messages.size() == 1; }));
  for (int i = 0; i < 100; ++i) {
    pair.a->Progress();
    pair.b->Progress();
  }
  EXPECT_TRUE(pair.b_box.messages[0].payload == absl::MakeConstSpan(PatternOf(1, 100'000)));
  pair.b_box.leases.clear();
  ASSERT_TRUE(pair.Progress([] { return MappingsOfSlabs() == 0; }));
}

TEST(SharedMemoryTransportTest, ATransportThatSharesItsLoopMissesNoEvent) {
  class Other : public EventLoop::Handler {
   public:
    void Ready(uint32_t) override { ++readies; }
    int readies = 0;
  } other;
  Postbox a_box, b_box;
  Member a(a_box);
  const Member b(b_box);
  const FileDescriptor event(eventfd(0, EFD_NONBLOCK));
  ASSERT_TRUE(b.loop().Watch(event.get(), EPOLLIN | EPOLLET, &other).ok());
  ASSERT_TRUE(b.FallAsleep());
  const PeerId to_b = a.Connect(b);
  EXPECT_TRUE(b.IsWoken());
  EXPECT_TRUE(b->HasNews());
  ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return !b_box.joined.empty(); }));
  a->Progress();
  ASSERT_TRUE(b.FallAsleep());
  a->Send(to_b, HeaderOf(1, 0), {}, nullptr);
  a->Progress();
  EXPECT_TRUE(b.IsWoken());
  EXPECT_TRUE(b->HasNews());
  EXPECT_FALSE(b->PrepareToSleep());
  b->Progress();
  EXPECT_EQ(b_box.messages.size(), 1u);
  ASSERT_TRUE(b.FallAsleep());
  const uint64_t count = 1;
  ASSERT_EQ(write(event.get(), &count, sizeof(count)), sizeof(count));
  EXPECT_TRUE(b.IsWoken());
  EXPECT_EQ(other.readies, 1);
  b->Progress();
  ASSERT_TRUE(b.FallAsleep());
  a.reset();
  EXPECT_TRUE(b.IsWoken());
}

TEST(SharedMemoryTransportTest, ASecondWaitWithoutProgressStillSeesTheNewsOfTheFirst) {
  Postbox a_box, b_box;
  const Member a(a_box), b(b_box);
  ASSERT_TRUE(b.FallAsleep());
  a.Connect(b);
  b->Wait(absl::InfiniteDuration());
  b->Wait(absl::InfiniteDuration());
  b->Progress();
  EXPECT_EQ(b_box.joined.size(), 1u);
}

TEST(SharedMemoryTransportTest, ASleepingWriterIsWokenByAReturnWithoutAnAnswer) {
  Postbox a_box, b_box;
  b_box.read_in_place = true;
  const Member a(a_box), b(b_box);
  const PeerId to_b = a.Connect(b);
  const RegisteredSlab slab(*a, 100'000);
  bool done = false;
  a->Send(to_b, HeaderOf(1, 100'000), slab.slab->memory(),
          [&](const absl::Status&) { done = true; });
  ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return b_box.messages.size() == 1; }));
  ASSERT_TRUE(a.FallAsleep());
  b_box.leases.clear();
  b->Wait(absl::ZeroDuration());
  EXPECT_TRUE(a.IsWoken());
  a->Progress();
  EXPECT_TRUE(done);
}

TEST(SharedMemoryTransportTest, AWriterWokenByAnAnswerIsNotWokenAgainForEarlierReturns) {
  Pair pair;
  pair.b_box.read_in_place = true;
  pair.b_box.on_message = [&](const Postbox::Message& message) {
    pair.b_box.leases.clear();
    pair.b->Send(message.from, HeaderOf(2, 0), {}, nullptr);
  };
  const RegisteredSlab slab(*pair.a, 100'000);
  const auto send = [&] {
    pair.a->Send(pair.to_b, HeaderOf(1, 100'000), slab.slab->memory(), nullptr);
  };
  send();
  ASSERT_TRUE(pair.a.FallAsleep());
  pair.b->Progress();
  EXPECT_TRUE(pair.a.IsWoken());
  pair.a->Progress();
  EXPECT_EQ(pair.a_box.messages.size(), 1u);
  send();
  ASSERT_TRUE(pair.a.FallAsleep());
  pair.b->WakePeers();
  EXPECT_FALSE(pair.a.IsWoken());
}

// ---- Joining.

TEST(SharedMemoryTransportTest, APeerIsKnownBeforeItsFirstMessageAndAnsweredOnTheSameLink) {
  Postbox a_box, b_box;
  const Member a(a_box), b(b_box);
  bool known = false;
  b_box.on_message = [&](const Postbox::Message& message) {
    known = b_box.joined.size() == 1 && b_box.joined[0].first == message.from;
    b->Send(message.from, HeaderOf(2, 1000), message.payload, nullptr);
  };
  const LinkCredentials credentials = CredentialsOf(5, LinkRole::kShard);
  const PeerId to_b = *a->Connect(b->address(), credentials);
  const std::vector<std::byte> payload = PatternOf(1, 1000);
  a->Send(to_b, HeaderOf(1, 1000), payload, nullptr);
  ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return a_box.messages.size() == 1; }));
  EXPECT_TRUE(known);
  EXPECT_EQ(b_box.joined[0].second, credentials.self);
  EXPECT_TRUE(a_box.joined.empty());
  EXPECT_EQ(a_box.messages[0].from, to_b);
  EXPECT_EQ(a_box.messages[0].header, HeaderOf(2, 1000));
  EXPECT_TRUE(a_box.messages[0].payload == absl::MakeConstSpan(payload));
}

TEST(SharedMemoryTransportTest, AWrongTokenAndAnUnknownSessionAreRefusedAlike) {
  Postbox a_box, b_box;
  const Member a(a_box), b(b_box);
  LinkCredentials wrong_token = CredentialsOf(0), wrong_job = wrong_token,
                  wrong_generation = wrong_token;
  wrong_token.token = SessionToken::Random();
  wrong_job.self.job = 2;
  wrong_generation.self.generation = 2;
  const std::vector<std::byte> payload = PatternOf(1, 2000);
  int failed = 0;
  for (const LinkCredentials& credentials : {wrong_token, wrong_job, wrong_generation}) {
    const PeerId peer = *a->Connect(b->address(), credentials);
    a->Send(peer, HeaderOf(1, 2000), payload,
            [&](const absl::Status& status) { failed += absl::IsPermissionDenied(status); });
    ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return !a_box.losses.empty(); }));
    EXPECT_EQ(a_box.losses[0].first, peer);
    EXPECT_EQ(a_box.losses[0].second,
              absl::PermissionDeniedError("shared memory: not let in: no such session is open "
                                          "there, or its token differs"));
    a_box.losses.clear();
  }
  EXPECT_EQ(failed, 3);
  EXPECT_EQ(b->turned_away(), 3);
  EXPECT_TRUE(b_box.joined.empty());
  EXPECT_TRUE(b_box.messages.empty());
  EXPECT_TRUE(b_box.losses.empty());
}

TEST(SharedMemoryTransportTest, AClosedSessionAcceptsNoPeerAndDropsNone) {
  Pair pair;
  pair.b->CloseSession(1, 1);
  pair.a.Connect(pair.b);
  ASSERT_TRUE(pair.Progress([&] { return pair.a_box.losses.size() == 1; }));
  pair.a->Send(pair.to_b, HeaderOf(1, 0), {}, nullptr);
  EXPECT_TRUE(pair.Progress([&] { return pair.b_box.messages.size() == 1; }));
  EXPECT_EQ(pair.b_box.joined.size(), 1u);
}

TEST(SharedMemoryTransportTest, AnUnknownPeerMayBeDisconnectedInPeerJoined) {
  class Bouncer : public Postbox {
   public:
    void PeerJoined(PeerId peer, const LinkIdentity& who) override {
      Postbox::PeerJoined(peer, who);
      transport->Disconnect(peer);
    }
    Transport* transport = nullptr;
  } bouncer;
  Postbox a_box;
  const Member a(a_box), b(bouncer);
  bouncer.transport = b.get();
  const PeerId to_b = a.Connect(b);
  a->Send(to_b, HeaderOf(1, 0), {}, nullptr);
  ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return a_box.losses.size() == 1; }));
  EXPECT_EQ(bouncer.joined.size(), 1u);
  EXPECT_TRUE(bouncer.messages.empty());
  EXPECT_TRUE(bouncer.losses.empty());
}

// ---- The end of a link.

TEST(SharedMemoryTransportTest, ADisconnectIsReportedAfterTheMessagesSentBefore) {
  for (const bool by_who_dialled : {true, false}) {
    Pair pair;
    const Member& leaver = by_who_dialled ? pair.a : pair.b;
    const PeerId peer = by_who_dialled ? pair.to_b : pair.to_a;
    Postbox& box = by_who_dialled ? pair.b_box : pair.a_box;
    const std::vector<std::byte> payload = PatternOf(1, 5000);
    int done = 0;
    for (uint32_t i = 0; i < 3; ++i) {
      leaver->Send(peer, HeaderOf(i, payload.size()), payload,
                   [&](const absl::Status& status) { done += status.ok(); });
    }
    ASSERT_TRUE(pair.Progress([&] { return done == 3; }));
    leaver->Disconnect(peer);
    ASSERT_TRUE(pair.Progress([&] { return !box.losses.empty(); }));
    EXPECT_EQ(box.messages.size(), 3u);
    EXPECT_TRUE(absl::IsUnavailable(box.losses[0].second)) << box.losses[0].second;
    for (int i = 0; i < 100; ++i) {
      pair.a->Progress();
      pair.b->Progress();
    }
    EXPECT_EQ(pair.a_box.losses.size() + pair.b_box.losses.size(), 1u);
  }
}

TEST(SharedMemoryTransportTest, APeerThatHoldsAPayloadLearnsAtOnceThatItsSenderLeft) {
  Pair pair;
  pair.b_box.read_in_place = true;
  const RegisteredSlab slab(*pair.a, 100'000);
  absl::Status done = absl::UnknownError("not yet");
  const auto finish = [&](const absl::Status& status) { done = status; };
  pair.a->Send(pair.to_b, HeaderOf(1, 100'000), slab.slab->memory(), finish);
  ASSERT_TRUE(pair.Progress([&] { return pair.b_box.messages.size() == 1; }));
  absl::Status late;
  pair.a->Disconnect(pair.to_b);
  ASSERT_TRUE(pair.Progress([&] { return pair.b_box.losses.size() == 1; }));
  pair.b->Send(pair.to_a, HeaderOf(2, 0), {}, [&](const absl::Status& status) { late = status; });
  EXPECT_TRUE(absl::IsUnavailable(late)) << late;
  EXPECT_TRUE(absl::IsUnknown(done)) << done;
  EXPECT_TRUE(pair.b_box.messages[0].payload == absl::MakeConstSpan(PatternOf(1, 100'000)));
  pair.b_box.leases.clear();
  ASSERT_TRUE(pair.Progress([&] { return !absl::IsUnknown(done); }));
  EXPECT_TRUE(done.ok()) << done;
  EXPECT_TRUE(pair.a_box.losses.empty());
}

TEST(SharedMemoryTransportTest, APeerThatIsCutOffHoldsNothingUp) {
  Pair pair;
  pair.b_box.read_in_place = true;
  const RegisteredSlab slab(*pair.a, 100'000);
  absl::Status done = absl::UnknownError("not yet");
  pair.a->Send(pair.to_b, HeaderOf(1, 100'000), slab.slab->memory(),
               [&](const absl::Status& status) { done = status; });
  ASSERT_TRUE(pair.Progress([&] { return pair.b_box.messages.size() == 1; }));
  pair.a->CutOff(pair.to_b);
  ASSERT_TRUE(ProgressUntil({pair.a.get()}, [&] { return !absl::IsUnknown(done); }))
      << "although the other side makes no progress";
  EXPECT_FALSE(done.ok());
  ASSERT_TRUE(pair.Progress([&] { return pair.b_box.losses.size() == 1; }))
      << "after it makes progress again";
  pair.b_box.leases.clear();
  for (int i = 0; i < 100; ++i) {
    pair.a->Progress();
    pair.b->Progress();
  }
  EXPECT_TRUE(pair.a_box.losses.empty());
  EXPECT_EQ(pair.a->malformed_messages() + pair.b->malformed_messages(), 0);
}

// A side that has left returns payloads unread. Otherwise each side would wait for the other
// forever.
TEST(SharedMemoryTransportTest, TwoPeersThatLeaveAtOnceBothGetTheirPayloadsBack) {
  Pair pair;
  const RegisteredSlab slab(*pair.a, 100'000);
  const auto registration = *pair.b->RegisterMemory(slab.slab->memory());
  int dones = 0;
  const auto count = [&](const absl::Status&) { ++dones; };
  pair.a->Send(pair.to_b, HeaderOf(1, 100'000), slab.slab->memory(), count);
  pair.b->Send(pair.to_a, HeaderOf(2, 100'000), slab.slab->memory(), count);
  pair.a->Disconnect(pair.to_b);
  pair.b->Disconnect(pair.to_a);
  EXPECT_TRUE(pair.Progress([&] { return dones == 2; }));
  EXPECT_TRUE(pair.a_box.messages.empty() && pair.b_box.messages.empty());
  EXPECT_TRUE(pair.a_box.losses.empty() && pair.b_box.losses.empty());
}

TEST(SharedMemoryTransportTest, AMessageHalfReceivedWhenItsSenderLeavesIsLost) {
  Pair pair;
  const std::vector<std::byte> payload = PatternOf(1, 8 << 20);
  pair.a->Send(pair.to_b, HeaderOf(1, payload.size()), payload, nullptr);
  for (int i = 0; i < 2; ++i) pair.a->Progress();
  pair.b->Progress();
  ASSERT_TRUE(pair.b_box.messages.empty());
  pair.a->Disconnect(pair.to_b);
  ASSERT_TRUE(pair.Progress([&] { return !pair.b_box.losses.empty(); }));
  EXPECT_TRUE(pair.b_box.messages.empty());
  ASSERT_EQ(pair.b_box.lost_payloads.size(), 1u);
  EXPECT_EQ(pair.b_box.lost_payloads[0].first, pair.to_a);
  EXPECT_EQ(pair.b_box.lost_payloads[0].second, HeaderOf(1, payload.size()));
}

TEST(SharedMemoryTransportTest, NoCallbackFollowsADisconnect) {
  Pair pair;
  const std::vector<std::byte> payload = PatternOf(1, 8 << 20);
  pair.a->Send(pair.to_b, HeaderOf(1, payload.size()), payload, nullptr);
  for (int i = 0; i < 2; ++i) pair.a->Progress();
  pair.b->Progress();
  pair.b->Disconnect(pair.to_a);
  ASSERT_TRUE(pair.Progress([&] { return pair.a_box.losses.size() == 1; }));
  EXPECT_TRUE(pair.b_box.messages.empty());
  EXPECT_TRUE(pair.b_box.lost_payloads.empty());
  EXPECT_TRUE(pair.b_box.losses.empty());
}

TEST(SharedMemoryTransportTest, APeerWithoutADescriptorForASlabLosesTheLinkAndReportsWhy) {
  Pair pair;
  const RegisteredSlab slab(*pair.a, 100'000);
  absl::Status sent;
  pair.a->Send(pair.to_b, HeaderOf(1, 100'000), slab.slab->memory(),
               [&](const absl::Status& status) { sent = status; });
  {
    const NoDescriptorsLeft none;
    ASSERT_TRUE(pair.Progress([&] { return pair.b_box.losses.size() == 1; }));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(pair.b_box.losses[0].second))
      << pair.b_box.losses[0].second;
  EXPECT_EQ(pair.b->malformed_messages(), 0);
  ASSERT_TRUE(pair.Progress([&] { return pair.a_box.losses.size() == 1; }));
  EXPECT_TRUE(absl::IsUnavailable(sent)) << sent;
}

// Puts as many files in transit between this user's sockets as the kernel allows an unprivileged
// process, for the lifetime of the object.
class FilesUnderWay {
 public:
  FilesUnderWay() {
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    from_ = FileDescriptor(ends[0]);
    to_ = FileDescriptor(ends[1]);
    alignas(cmsghdr) char control[CMSG_SPACE(kFiles * sizeof(int))] = {};
    char letter = 'x';
    iovec data{.iov_base = &letter, .iov_len = 1};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(kFiles * sizeof(int));
    const std::vector<int> files(kFiles, STDERR_FILENO);
    std::memcpy(CMSG_DATA(header), files.data(), kFiles * sizeof(int));
    CHECK_EQ(sendmsg(from_.get(), &message, MSG_NOSIGNAL), 1) << std::strerror(errno);
    // The kernel compares the files in transit with this process's limit of open files. So lowering
    // that limit below kFiles makes it refuse more.
    none_.emplace();
    refuses_ = sendmsg(from_.get(), &message, MSG_NOSIGNAL) < 0 && errno == ETOOMANYREFS;
  }
  // Returns false if the kernel lets this process send more despite the limit.
  bool refuses_more() const { return refuses_; }

 private:
  static constexpr int kFiles = 250;
  FileDescriptor from_, to_;
  std::optional<NoDescriptorsLeft> none_;
  bool refuses_;
};

// While the kernel refuses the slab's file, the socket stays writable, so no event tells the sender
// when to try again.
TEST(SharedMemoryTransportTest, ASenderThatCannotSendASlabYetSleepsAndTriesAgain) {
  Pair pair;
  const RegisteredSlab slab(*pair.a, 100'000);
  {
    const FilesUnderWay many;
    if (!many.refuses_more()) GTEST_SKIP() << "this process may send files without a limit";
    pair.a->Send(pair.to_b, HeaderOf(1, 100'000), slab.slab->memory(), nullptr);
    EXPECT_TRUE(pair.a.FallAsleep());
    EXPECT_GT(pair.a->SleepMax(), absl::ZeroDuration());
    EXPECT_LE(pair.a->SleepMax(), absl::Milliseconds(100));
  }
  ASSERT_TRUE(pair.Progress([&] { return pair.b_box.messages.size() == 1; }));
  EXPECT_EQ(pair.a->SleepMax(), absl::InfiniteDuration());
  EXPECT_TRUE(pair.a_box.losses.empty());
}

// If one side gives a link up, lent memory still belongs to its reader until the reader lets go.
TEST(SharedMemoryTransportTest, PayloadsStayLentWhenALinkIsGivenUp) {
  Pair pair;
  pair.a_box.read_in_place = pair.b_box.read_in_place = true;
  const RegisteredSlab of_a(*pair.a, 100'000), of_b(*pair.b, 100'000);
  auto unannounced = std::make_unique<RegisteredSlab>(*pair.a, 100'000);
  absl::Status a_done = absl::UnknownError("not yet"), b_done = a_done, last_done = a_done;
  pair.a->Send(pair.to_b, HeaderOf(1, 100'000), of_a.slab->memory(),
               [&](const absl::Status& status) { a_done = status; });
  pair.b->Send(pair.to_a, HeaderOf(2, 100'000), of_b.slab->memory(),
               [&](const absl::Status& status) { b_done = status; });
  ASSERT_TRUE(pair.Progress(
      [&] { return pair.a_box.messages.size() == 1 && pair.b_box.messages.size() == 1; }));

  pair.a->Send(pair.to_b, HeaderOf(3, 100'000), unannounced->slab->memory(),
               [&](const absl::Status& status) { last_done = status; });
  {
    const NoDescriptorsLeft none;
    ASSERT_TRUE(pair.Progress([&] { return pair.b_box.losses.size() == 1; }));
  }
  ASSERT_TRUE(pair.Progress([&] { return pair.a_box.losses.size() == 1; }));
  ASSERT_TRUE(pair.Progress([&] { return !absl::IsUnknown(last_done); }));
  unannounced.reset();
  for (int i = 0; i < 100; ++i) {
    pair.a->Progress();
    pair.b->Progress();
  }

  EXPECT_TRUE(absl::IsResourceExhausted(pair.b_box.losses[0].second))
      << pair.b_box.losses[0].second;
  EXPECT_TRUE(absl::IsUnknown(a_done)) << a_done;
  EXPECT_TRUE(absl::IsUnknown(b_done)) << b_done;
  EXPECT_EQ(pair.b_box.messages.size(), 1u);
  pair.b_box.leases.clear();
  ASSERT_TRUE(pair.Progress([&] { return !absl::IsUnknown(a_done); }));
  EXPECT_TRUE(a_done.ok()) << a_done;
  EXPECT_TRUE(absl::IsUnknown(b_done)) << b_done;
  pair.a_box.leases.clear();
  ASSERT_TRUE(pair.Progress([&] { return !absl::IsUnknown(b_done); }));
  EXPECT_TRUE(b_done.ok()) << b_done;
  EXPECT_EQ(pair.a->malformed_messages() + pair.b->malformed_messages(), 0);
  EXPECT_EQ(pair.a_box.losses.size() + pair.b_box.losses.size(), 2u);
}

// ---- Peers that break the protocol.

// Connects to a transport and speaks the protocol by hand.
class Forger {
 public:
  explicit Forger(const SharedMemoryTransport& transport)
      : socket_(*ControlSocket::Connect(LocalAddress::Decode(transport.address())->SocketName())),
        memory_(
            *SealedMemory::Create("forged", message_ring::kBytes, SealedMemory::Others::kWrite)),
        slab_(*SharedSlab::Allocate(100'000)) {}

  void Say(const ControlPacket& packet, int file = -1) {
    (void)socket_.Send(packet, file);  // the link may be closed already
  }
  void SayHello() {
    SayMemory();
    SayWho();
    SayBell();
  }
  void SayMemory() { Say({.kind = Kind::kHello, .bytes = message_ring::kBytes}, memory_.file()); }
  void SayWho() {
    const LinkCredentials credentials = CredentialsOf(7);
    Say({.kind = Kind::kIntroduce, .who = credentials.self, .token = credentials.token});
  }
  void SayBell() { Say({.kind = Kind::kBell}, bell_.fd()); }
  void SaySlab(uint32_t number) {
    Say({.kind = Kind::kSlab, .slab = number, .bytes = slab_->memory().size()}, slab_->fd());
  }
  // Writes `bytes` to the next ring entry.
  void Publish(std::array<std::byte, RingDescriptor::kBytes> bytes) {
    const uint64_t number = ++published_;
    std::byte* entry = memory_.memory().data() + message_ring::kEntriesAt +
                       (number - 1) % message_ring::kEntries * RingDescriptor::kBytes;
    std::memcpy(entry, bytes.data(), bytes.size());
    std::memcpy(entry + 64, &number, sizeof(number));
  }
  void Publish(const RingDescriptor& descriptor) { Publish(EncodeDescriptor(descriptor, 0)); }

  // Reads until no packet is left. Returns whether the link is closed.
  bool IsCutOff() {
    while (true) {
      const auto heard = socket_.Receive();
      if (!heard.ok()) return absl::IsUnavailable(heard.status());
      if (!heard->has_value()) return false;
    }
  }

  ControlSocket socket_;
  SealedMemory memory_;
  std::shared_ptr<SharedSlab> slab_;
  Doorbell bell_ = *Doorbell::Create();
  uint64_t published_ = 0;
};

class ForgerTest : public testing::Test {
 protected:
  // Whether the transport closes the link of a peer that does this, and counts it once.
  bool IsCutOff(const std::function<void(Forger&)>& attack) {
    const int64_t before = transport_->malformed_messages();
    Forger forger(*transport_);
    attack(forger);
    const bool cut_off = ProgressUntil(
        {transport_.get()}, [&] { return forger.IsCutOff(); }, std::chrono::seconds(5));
    return cut_off && transport_->malformed_messages() == before + 1;
  }

  // Checks that the transport still serves correct peers.
  void ExpectService() {
    Postbox client_box;
    const Member client(client_box);
    const PeerId peer = client.Connect(transport_);
    const RegisteredSlab slab(*client, 200'000);
    const size_t before = postbox_.messages.size();
    client->Send(peer, HeaderOf(1, 200'000), slab.slab->memory(), nullptr);
    client->Send(peer, HeaderOf(2, 100), slab.slab->memory().first(100), nullptr);
    ASSERT_TRUE(ProgressUntil({client.get(), transport_.get()},
                              [&] { return postbox_.messages.size() == before + 2; }));
    EXPECT_TRUE(postbox_.messages[before].payload == absl::MakeConstSpan(slab.slab->memory()));
  }

  static RingDescriptor InSlab(uint64_t offset, uint64_t length) {
    return {.header = HeaderOf(1, length), .offset = offset, .length = length, .slab = 1};
  }

  Postbox postbox_;
  Member transport_{postbox_};
};

TEST_F(ForgerTest, APeerThatMisusesTheSocketIsCutOff) {
  const auto unsealed = [](uint64_t bytes) {
    FileDescriptor file(memfd_create("unsealed", MFD_CLOEXEC));
    CHECK_EQ(ftruncate(file.get(), static_cast<int64_t>(bytes)), 0);
    return file;
  };
  const auto hello = [](uint64_t bytes) {
    return ControlPacket{.kind = Kind::kHello, .bytes = bytes};
  };
  EXPECT_TRUE(IsCutOff([&](Forger& f) { f.Say(hello(message_ring::kBytes)); }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) {
    f.Say(hello(message_ring::kBytes), unsealed(message_ring::kBytes).get());
  }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) { f.Say(hello(100'000), f.slab_->fd()); }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) { f.Say(hello(100'000), f.memory_.file()); }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) { f.SaySlab(1); }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) {
    f.SayHello();
    f.SayHello();
  }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) { f.SayBell(); }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) {
    f.SayHello();
    f.SayBell();
  }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) {
    f.SayMemory();
    f.SayWho();
    f.Say({.kind = Kind::kBell}, f.slab_->fd());
  }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) { f.SayWho(); }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) {
    f.SayHello();
    f.SayWho();
  }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) {
    f.SayMemory();
    f.SayBell();
  }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) {
    f.SayMemory();
    f.SayWho();
    f.Say({.kind = Kind::kBye});
  }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) {
    f.SayHello();
    f.Say({.kind = Kind::kRefused, .refusal = ControlPacket::Refusal::kNotLetIn});
  }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) {
    f.SayMemory();
    f.Say({.kind = Kind::kRefused, .refusal = ControlPacket::Refusal::kNotLetIn});
  }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) {
    f.SayHello();
    f.SaySlab(0);
  }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) {
    f.SayHello();
    f.SaySlab(1);
    f.SaySlab(1);
  }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) {
    f.SayHello();
    f.Say({.kind = Kind::kSlab, .slab = 1, .bytes = 4096}, unsealed(4096).get());
  }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) {
    f.SayHello();
    f.Say({.kind = Kind::kWithdraw, .slab = 1});
  }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) { send(f.socket_.fd(), "hello", 5, 0); }));
  EXPECT_TRUE(IsCutOff([&](Forger& f) {
    const std::string noise(5000, '\xff');
    send(f.socket_.fd(), noise.data(), noise.size(), 0);
  }));
  ExpectService();
}

// The kernel reports ECONNRESET before the packets that arrived, so the link must read on after
// that error.
TEST_F(ForgerTest, MessagesArriveThoughTheirSenderDiedWithoutReadingTheBell) {
  {
    Forger forger(*transport_);
    forger.SayMemory();
    forger.SayWho();
    for (int i = 0; i < 200; ++i) transport_->Progress();
    forger.SayBell();
    forger.Publish({.header = HeaderOf(1, 0)});
  }
  EXPECT_TRUE(ProgressUntil({transport_.get()}, [&] { return postbox_.messages.size() == 1; }));
  EXPECT_EQ(transport_->malformed_messages(), 0);
}

TEST_F(ForgerTest, MessagesArriveThoughTheirSenderDiedBeforeItsOwnBell) {
  {
    Forger forger(*transport_);
    forger.SayMemory();
    forger.SayWho();
    for (int i = 0; i < 200; ++i) transport_->Progress();
    forger.Publish({.header = HeaderOf(1, 0)});
  }
  EXPECT_TRUE(ProgressUntil({transport_.get()}, [&] { return postbox_.messages.size() == 1; }));
}

TEST_F(ForgerTest, NothingIsKeptOfAPeerThatIsCutOffBeforeItJoined) {
  EXPECT_TRUE(IsCutOff([](Forger& f) {
    f.SayMemory();
    f.SayWho();
    f.SayMemory();
  }));
  for (int i = 0; i < 100; ++i) transport_->Progress();
  EXPECT_TRUE(postbox_.joined.empty() && postbox_.losses.empty());
  EXPECT_DEATH(transport_->Disconnect(PeerId{0}), "no peer 0");
}

TEST_F(ForgerTest, APeerIsRefusedIfItsSessionClosesBeforeItJoins) {
  Forger forger(*transport_);
  forger.SayMemory();
  forger.SayWho();
  for (int i = 0; i < 100; ++i) transport_->Progress();
  ASSERT_FALSE(forger.IsCutOff());
  transport_->CloseSession(1, 1);
  forger.SayBell();
  forger.Publish({.header = HeaderOf(1, 0)});
  EXPECT_TRUE(ProgressUntil({transport_.get()}, [&] { return forger.IsCutOff(); }));
  EXPECT_TRUE(postbox_.joined.empty() && postbox_.messages.empty() && postbox_.losses.empty());
  EXPECT_EQ(transport_->turned_away(), 1);
  EXPECT_EQ(transport_->malformed_messages(), 0);
}

TEST_F(ForgerTest, APeerThatPublishesInvalidDescriptorsIsCutOff) {
  const auto published = [&](const RingDescriptor& descriptor) {
    return IsCutOff([&](Forger& f) {
      f.SayHello();
      f.SaySlab(1);
      f.Publish(descriptor);
    });
  };
  EXPECT_TRUE(published(InSlab(0, 100'001)));
  EXPECT_TRUE(published(InSlab(100'001, 1)));
  EXPECT_TRUE(published(InSlab(~uint64_t{0} - 9, 10)));
  EXPECT_TRUE(published(InSlab(50'000, ~uint64_t{0} / 2)));
  EXPECT_TRUE(published({.header = HeaderOf(1, 100), .length = 100, .slab = 2}));
  EXPECT_TRUE(published({.header = HeaderOf(1, 200), .length = 100, .position = 100}));
}

TEST_F(ForgerTest, APeerThatChangesAMessageBetweenItsFragmentsIsCutOff) {
  const auto second = [&](const RingDescriptor& descriptor) {
    return IsCutOff([&](Forger& f) {
      f.SayHello();
      f.SaySlab(1);
      f.Publish({.header = HeaderOf(1, 300), .length = 100});
      f.Publish(descriptor);
    });
  };
  EXPECT_TRUE(second({.header = HeaderOf(2, 300), .length = 100, .position = 100}));
  EXPECT_TRUE(second({.header = HeaderOf(1, 400), .length = 100, .position = 100}));
  EXPECT_TRUE(second({.header = HeaderOf(1, 300), .length = 100, .position = 50}));
  EXPECT_TRUE(second({.header = HeaderOf(1, 300), .length = 100, .position = 200}));
  EXPECT_TRUE(second(InSlab(0, 100)));
  ExpectService();
}

TEST_F(ForgerTest, RandomBytesInTheRingAndOnTheSocketDoNoHarm) {
  const uint32_t seed = 815;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    Forger forger(*transport_);
    if (random() % 8 != 0) forger.SayHello();
    if (random() % 2 != 0) forger.SaySlab(static_cast<uint32_t>(random() % 3));
    if (random() % 8 == 0) forger.SayBell();
    for (int i = 0; i < 20; ++i) {
      RingDescriptor descriptor = InSlab(random() % 200'000, random() % 200'000);
      descriptor.slab = static_cast<uint32_t>(random() % 3);
      if (random() % 2 == 0) {
        descriptor.length = random() % 2000;
        descriptor.header.length = descriptor.length;
        descriptor.slab = 0;
      }
      auto bytes = EncodeDescriptor(descriptor, 0);
      for (uint64_t n = random() % 3; n > 0; --n) {
        bytes[64 + random() % 64] = static_cast<std::byte>(random());
      }
      forger.Publish(bytes);
      const uint64_t word = random() >> random() % 64;
      std::memcpy(forger.memory_.memory().data() + random() % 24 * 8, &word, 8);
    }
    for (int i = 0; i < 5; ++i) {
      transport_->PrepareToSleep();
      transport_->Progress();
    }
    ASSERT_LE(postbox_.losses.size(), postbox_.joined.size()) << "seed " << seed;
  }
  EXPECT_GT(transport_->malformed_messages(), 100);
  ExpectService();
}

// The other side of a link: a peer that was dialled.
class ForgedListener {
 public:
  PeerId BeDialled(const Member& by) {
    const PeerId peer = *by->Connect(address_.Encode(), CredentialsOf(0));
    socket_ = std::move(**listener_.Accept());
    return peer;
  }
  // Returns the ring of the dialling side.
  SealedMemory HearHello() {
    const auto heard = socket_->Receive();
    CHECK(heard.ok() && heard->has_value()) << heard.status();
    return *SealedMemory::Map((*heard)->file, message_ring::kBytes,
                              SealedMemory::Access::kReadWrite);
  }
  void Say(const ControlPacket& packet, int file = -1) { CHECK(socket_->Send(packet, file).ok()); }
  void Answer() {
    Say({.kind = Kind::kHello, .bytes = message_ring::kBytes}, memory_.file());
    Say({.kind = Kind::kBell}, bell_.fd());
  }
  void HangUp() { socket_.reset(); }

 private:
  const LocalAddress address_ = *LocalAddress::Make();
  ControlSocket listener_ = *ControlSocket::Listen(address_.SocketName());
  std::optional<ControlSocket> socket_;
  const SealedMemory memory_ =
      *SealedMemory::Create("forged", message_ring::kBytes, SealedMemory::Others::kWrite);
  const Doorbell bell_ = *Doorbell::Create();
};

TEST_F(ForgerTest, AReaderThatReturnsAnUnknownLoanIsLost) {
  ForgedListener listener;
  listener.BeDialled(transport_);
  const RegisteredSlab slab(*transport_, 100'000);
  int failed = 0;
  transport_->Send(PeerId{0}, HeaderOf(1, 100'000), slab.slab->memory(),
                   [&](const absl::Status& status) { failed += !status.ok(); });
  const SealedMemory memory = listener.HearHello();
  listener.Answer();
  ASSERT_TRUE(ProgressUntil({transport_.get()},
                            [&] { return MessageRingReader(memory.memory()).HasMessage(); }));

  MessageRingReader reader(memory.memory());
  for (uint32_t i = 1; i <= 600; ++i) reader.Return(4'000'000'000u + i);

  ASSERT_TRUE(ProgressUntil({transport_.get()},
                            [&] { return failed == 1 && postbox_.losses.size() == 1; }));
  EXPECT_EQ(transport_->malformed_messages(), 1);
  ExpectService();
}

TEST_F(ForgerTest, NothingIsSentToADialledPeerBeforeItAnswers) {
  ForgedListener listener;
  const PeerId peer = listener.BeDialled(transport_);
  absl::Status sent;
  transport_->Send(peer, HeaderOf(1, 0), {}, [&](const absl::Status& status) { sent = status; });
  const SealedMemory memory = listener.HearHello();
  for (int i = 0; i < 100; ++i) transport_->Progress();
  EXPECT_FALSE(MessageRingReader(memory.memory()).HasMessage());
  listener.HangUp();
  ASSERT_TRUE(ProgressUntil({transport_.get()}, [&] { return postbox_.losses.size() == 1; }));
  EXPECT_TRUE(absl::IsUnavailable(sent)) << sent;
}

TEST_F(ForgerTest, SilentPeersHoldUpOthersOnlyBriefly) {
  std::vector<std::unique_ptr<Forger>> silent;
  for (int i = 0; i < SharedMemoryTransport::kUngreetedMax; ++i) {
    silent.push_back(std::make_unique<Forger>(*transport_));
  }
  Postbox client_box;
  const Member client(client_box);
  client.Connect(transport_);
  for (int i = 0; i < 200; ++i) transport_->Progress();
  EXPECT_TRUE(postbox_.joined.empty());
  EXPECT_TRUE(transport_.FallAsleep());
  silent.pop_back();
  EXPECT_TRUE(ProgressUntil({transport_.get()}, [&] { return !postbox_.joined.empty(); }));
}

TEST(SharedMemoryTransportTest, APeerThatDoesNotIntroduceItselfInTimeIsRefused) {
  Postbox box;
  const Member member(box, {.greeting_time = absl::Milliseconds(20)});
  Forger silent(*member);
  Forger greeted(*member);
  greeted.SayHello();
  const auto start = std::chrono::steady_clock::now();
  while (!silent.IsCutOff() && std::chrono::steady_clock::now() - start < std::chrono::seconds(9)) {
    member->Wait(absl::Seconds(10));
    member->Progress();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(9));
  EXPECT_EQ(box.joined.size(), 1u);
  EXPECT_TRUE(box.losses.empty());
  EXPECT_EQ(member->SleepMax(), absl::InfiniteDuration());
}

TEST(SharedMemoryTransportTest, ADialledPeerThatDoesNotAnswerInTimeIsLost) {
  Postbox box;
  const Member member(box, {.greeting_time = absl::Milliseconds(20)});
  ForgedListener silent;
  const PeerId peer = silent.BeDialled(member);
  absl::Status sent;
  member->Send(peer, HeaderOf(1, 0), {}, [&](const absl::Status& status) { sent = status; });
  const auto start = std::chrono::steady_clock::now();
  while (box.losses.empty() && std::chrono::steady_clock::now() - start < std::chrono::seconds(9)) {
    member->Wait(absl::Seconds(10));
    member->Progress();
  }
  ASSERT_EQ(box.losses.size(), 1u);
  EXPECT_EQ(box.losses[0].first, peer);
  const absl::Status& why = box.losses[0].second;
  EXPECT_TRUE(absl::IsUnavailable(why)) << why;
  EXPECT_TRUE(absl::StrContains(why.message(), "did not answer within 20ms")) << why;
  EXPECT_EQ(sent, why);
  EXPECT_EQ(member->SleepMax(), absl::InfiniteDuration());
}

TEST(SharedMemoryTransportTest, APeerIsToldThatThereAreTooManyLinks) {
  Postbox box, client_box;
  const Member member(box, {.accepted_max = 2}), client(client_box);
  for (uint32_t i = 0; i < 3; ++i) client.Connect(member, i);
  ASSERT_TRUE(ProgressUntil({member.get(), client.get()}, [&] {
    return box.joined.size() == 2 && client_box.losses.size() == 1;
  }));
  EXPECT_EQ(client_box.losses[0].first, PeerId{2});
  EXPECT_TRUE(absl::IsResourceExhausted(client_box.losses[0].second))
      << client_box.losses[0].second;
  client->Disconnect(PeerId{0});
  ASSERT_TRUE(ProgressUntil({member.get(), client.get()}, [&] { return box.losses.size() == 1; }));
  client.Connect(member, 4);
  EXPECT_TRUE(ProgressUntil({member.get(), client.get()}, [&] { return box.joined.size() == 3; }));
}

TEST(SharedMemoryTransportTest, ManyConnectionsAtOnceAreRefusedOverSeveralTurns) {
  constexpr int kKnocks = 3 * SharedMemoryTransport::kAcceptsMax / 2;
  Postbox box;
  const Member member(box, {.accepted_max = 0});
  std::vector<std::unique_ptr<Forger>> knocking;
  for (int i = 0; i < kKnocks; ++i) knocking.push_back(std::make_unique<Forger>(*member));

  member->Progress();
  EXPECT_EQ(member->turned_away(), SharedMemoryTransport::kAcceptsMax);
  EXPECT_TRUE(member->HasNews());  // waiting connections cause no further event
  member->Progress();
  EXPECT_EQ(member->turned_away(), kKnocks);
  EXPECT_TRUE(member.FallAsleep());
  EXPECT_EQ(member->SleepMax(), absl::InfiniteDuration());
}

TEST(SharedMemoryTransportTest, APeerRefusedForLackOfDescriptorsIsToldSo) {
  Postbox a_box, b_box;
  const Member a(a_box), b(b_box);
  a.Connect(b);
  {
    const NoDescriptorsLeft none(/*but=*/1);  // for the socket, not for the ring that comes with it
    EXPECT_TRUE(b.FallAsleep());
  }
  ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return a_box.losses.size() == 1; }));
  EXPECT_TRUE(absl::IsResourceExhausted(a_box.losses[0].second)) << a_box.losses[0].second;
  EXPECT_TRUE(b_box.joined.empty());
  EXPECT_EQ(b->malformed_messages(), 0);
}

TEST(SharedMemoryTransportTest, ALackOfDescriptorsForAPeerIsTriedAgainAfterASleep) {
  Postbox a_box, b_box;
  const Member a(a_box), b(b_box);
  a.Connect(b);
  {
    const NoDescriptorsLeft none;
    EXPECT_TRUE(b.FallAsleep());
    EXPECT_EQ(b->SleepMax(), absl::Milliseconds(100));
  }
  const auto start = std::chrono::steady_clock::now();
  while (b_box.joined.empty() &&
         std::chrono::steady_clock::now() - start < std::chrono::seconds(9)) {
    b->Wait(absl::Seconds(10));
    b->Progress();
  }
  EXPECT_EQ(b_box.joined.size(), 1u);
  EXPECT_EQ(b->SleepMax(), absl::InfiniteDuration());
}

TEST(SharedMemoryTransportTest, ALackOfDescriptorsToDialIsTriedAgainAndGivenUpInTheEnd) {
  Postbox a_box, b_box, hasty_box;
  const Member a(a_box), b(b_box), hasty(hasty_box, {.greeting_time = absl::Milliseconds(20)});
  {
    const NoDescriptorsLeft none;
    a.Connect(b);
    const PeerId peer = hasty.Connect(b);
    EXPECT_TRUE(a.FallAsleep());
    EXPECT_GT(a->SleepMax(), absl::Milliseconds(50));
    EXPECT_LE(a->SleepMax(), absl::Milliseconds(100));
    ASSERT_TRUE(ProgressUntil(
        {hasty.get()}, [&] { return hasty_box.losses.size() == 1; }, std::chrono::seconds(5)));
    EXPECT_EQ(hasty_box.losses[0].first, peer);
    const absl::Status& why = hasty_box.losses[0].second;
    EXPECT_TRUE(absl::IsResourceExhausted(why)) << why;
    EXPECT_TRUE(absl::StrContains(why.message(), "ulimit -n")) << why;
  }
  ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] {
    return !b_box.joined.empty() && a->SleepMax() == absl::InfiniteDuration();
  }));
  EXPECT_TRUE(a_box.losses.empty());
}

// An answer must come over the dialled socket, so another process cannot answer in its place.
TEST_F(ForgerTest, AnotherProcessCannotAnswerForADialledPeer) {
  ForgedListener listener;
  listener.BeDialled(transport_);
  const SealedMemory memory = listener.HearHello();
  EXPECT_TRUE(IsCutOff([](Forger& unauthenticated_peer) {
    unauthenticated_peer.SayMemory();
    unauthenticated_peer.SayBell();
  }));
  for (int i = 0; i < 100; ++i) transport_->Progress();
  EXPECT_TRUE(postbox_.losses.empty());
  EXPECT_TRUE(postbox_.joined.empty());
  listener.Answer();
  transport_->Send(PeerId{0}, HeaderOf(1, 0), {}, nullptr);
  EXPECT_TRUE(ProgressUntil({transport_.get()},
                            [&] { return MessageRingReader(memory.memory()).HasMessage(); }));
}

}  // namespace
}  // namespace muster::shared_memory_transport_test

int main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "--echo") return muster::shared_memory_transport_test::Echo();
  if (role == "--hold") return muster::shared_memory_transport_test::Hold();
  if (role == "--lend") return muster::shared_memory_transport_test::Lend();
  if (role == "--pour") return muster::shared_memory_transport_test::Pour();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
