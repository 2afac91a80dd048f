// Shared memory between processes that die, and against those that mean it ill. What every
// Transport must do is in transport_test.cc.
#include "lib/transport/shared_memory_transport.h"

#include <glog/logging.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
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
#include "lib/transport/child_process.h"
#include "lib/transport/control_socket.h"
#include "lib/transport/doorbell.h"
#include "lib/transport/file_descriptor.h"
#include "lib/transport/local_address.h"
#include "lib/transport/message_ring.h"
#include "lib/transport/postbox.h"
#include "lib/transport/sealed_memory.h"
#include "lib/transport/shared_slab.h"
#include "lib/transport/transport.h"
#include "lib/transport/wire.h"

namespace muster {
namespace {

using Kind = ControlPacket::Kind;

std::unique_ptr<SharedMemoryTransport> MakeTransport(MessageReceiver& receiver) {
  auto transport = SharedMemoryTransport::Create();
  CHECK(transport.ok()) << transport.status();
  (*transport)->SetReceiver(&receiver);
  return *std::move(transport);
}

struct RegisteredSlab {
  RegisteredSlab(Transport& transport, size_t size) : slab(*SharedSlab::Allocate(size)) {
    std::ranges::copy(PatternOf(1, size), slab->memory().begin());
    registration = *transport.RegisterMemory(slab->memory());
  }
  std::shared_ptr<SharedSlab> slab;
  std::unique_ptr<Transport::MemoryRegistration> registration;
};

// ---- Roles of this program when it starts itself. Each prints its address, connects to the one
// that stdin's first line has, and ends with stdin.

constexpr int kSkipped = 77;
constexpr size_t kLentBytes = 3 << 20;

class Role {
 public:
  Role() : transport(MakeTransport(postbox)) {
    std::cout << absl::BytesToHexString(transport->address()) << std::endl;
    std::string line;
    std::getline(std::cin, line);
    parent = *transport->Connect(absl::HexStringToBytes(line));
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
  std::unique_ptr<SharedMemoryTransport> transport;
  PeerId parent;
  std::atomic<bool> ended = false;
};

// Sends every message back, reading those in slabs in place.
int Echo() {
  Role role;
  role.postbox.read_in_place = true;
  role.postbox.on_message = [&](const Postbox::Message& message) {
    role.transport->Send(role.parent, message.header, message.payload,
                         [&role](const absl::Status&) { role.postbox.leases.clear(); });
  };
  return role.RunUntilStdinEnds();
}

// Keeps every payload that it is lent.
int Hold() {
  Role role;
  role.postbox.read_in_place = true;
  role.postbox.on_message = [&](const Postbox::Message& message) {
    role.transport->Send(role.parent, HeaderOf(message.header.chunk, 0), {}, nullptr);
  };
  return role.RunUntilStdinEnds();
}

// Sends its slab.
int Lend() {
  Role role;
  RegisteredSlab slab(*role.transport, kLentBytes);
  role.transport->Send(role.parent, HeaderOf(1, kLentBytes), slab.slab->memory(), nullptr);
  return role.RunUntilStdinEnds();
}

// Sends more than a ring holds from the heap.
int Pour() {
  Role role;
  const std::vector<std::byte> payload = PatternOf(1, 64 << 20);
  role.transport->Send(role.parent, HeaderOf(1, payload.size()), payload, nullptr);
  return role.RunUntilStdinEnds();
}

// Tries to connect as another user: 0 when turned away.
int Stranger() {
  std::string line;
  std::getline(std::cin, line);
  const auto address = LocalAddress::Decode(absl::HexStringToBytes(line));
  CHECK(address.ok()) << address.status();
  constexpr uid_t kNobody = 65534;
  if (setgroups(0, nullptr) != 0 || setuid(kNobody) != 0) return kSkipped;
  if (SharedMemoryTransport::IsLocal(absl::HexStringToBytes(line))) return 1;
  auto socket = ControlSocket::Connect(address->SocketName());
  if (!socket.ok()) return 2;
  auto heard = socket->Receive();
  while (heard.ok() && !heard->has_value()) {
    pollfd end{.fd = socket->fd(), .events = POLLIN, .revents = 0};
    poll(&end, 1, 1000);
    heard = socket->Receive();
  }
  return absl::IsUnavailable(heard.status()) ? 0 : 3;
}

// ---- Between processes.

class BetweenProcessesTest : public testing::Test {
 protected:
  void Start(const char* role) {
    child_ = std::make_unique<ChildProcess>(role);
    peer_ = *transport_->Connect(absl::HexStringToBytes(child_->ReadLine()));
    child_->WriteLine(absl::BytesToHexString(transport_->address()));
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
  std::unique_ptr<SharedMemoryTransport> transport_ = MakeTransport(postbox_);
  std::unique_ptr<ChildProcess> child_;
  PeerId peer_;
  int dones_ = 0, failures_ = 0;
};

TEST_F(BetweenProcessesTest, MessagesOfEverySizeComeBackWholeFromHeapAndSlab) {
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

TEST_F(BetweenProcessesTest, AKilledPeerIsLostOnceAndSendsUnderWayEnd) {
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

TEST_F(BetweenProcessesTest, WhatAKilledSenderLentStaysReadable) {
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

TEST_F(BetweenProcessesTest, WhatAKilledReaderHeldIsGivenBackWithAnError) {
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

TEST_F(BetweenProcessesTest, AMessageCutOffByDeathIsNeverDelivered) {
  bool begun = false;
  class Beginning : public Postbox {
   public:
    explicit Beginning(bool& begun) : begun_(begun) {}
    PayloadPlace PlacePayload(const WireHeader& header) override {
      begun_ = true;
      return Postbox::PlacePayload(header);
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

TEST(SharedMemoryTransportTest, AnotherUserIsTurnedAway) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Postbox postbox;
  auto transport = MakeTransport(postbox);
  ChildProcess stranger("--stranger");
  stranger.WriteLine(absl::BytesToHexString(transport->address()));
  std::atomic<bool> ended = false;
  int status = -1;
  std::jthread waiting([&] {
    status = stranger.Wait();
    ended = true;
    transport->Wake();
  });
  ASSERT_TRUE(ProgressUntil({transport.get()}, [&] { return ended.load(); }));
  waiting.join();
  if (status == kSkipped) GTEST_SKIP() << "cannot become another user here";
  EXPECT_EQ(status, 0);
}

// ---- Addresses and memory.

TEST(SharedMemoryTransportTest, AnAddressSaysWhetherItIsLocal) {
  Postbox postbox;
  auto transport = MakeTransport(postbox);
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

  auto peer = transport->Connect(elsewhere.Encode());
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

TEST(SharedMemoryTransportTest, ASlabThatIsNotRegisteredAnyMoreIsUnmappedByItsReaders) {
  Postbox a_box, b_box;
  auto a = MakeTransport(a_box), b = MakeTransport(b_box);
  const PeerId to_b = *a->Connect(b->address());
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

TEST(SharedMemoryTransportTest, ASlabIsWithdrawnOnlyOnceItsLastLeaseHasEnded) {
  Postbox a_box, b_box;
  b_box.read_in_place = true;
  auto a = MakeTransport(a_box), b = MakeTransport(b_box);
  const PeerId to_b = *a->Connect(b->address());
  {
    const RegisteredSlab slab(*a, 100'000);
    a->Send(to_b, HeaderOf(1, 100'000), slab.slab->memory(), nullptr);
  }
  ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return b_box.messages.size() == 1; }));
  for (int i = 0; i < 100; ++i) {
    a->Progress();
    b->Progress();
  }
  EXPECT_TRUE(b_box.messages[0].payload == absl::MakeConstSpan(PatternOf(1, 100'000)));
  b_box.leases.clear();
  ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [] { return MappingsOfSlabs() == 0; }));
}

TEST(SharedMemoryTransportTest, WhoWaitsForMoreThanThisTransportHearsOfEverything) {
  Postbox a_box, b_box;
  auto a = MakeTransport(a_box), b = MakeTransport(b_box);
  const FileDescriptor other(eventfd(0, EFD_NONBLOCK));
  b->AlsoWatch(other.get());
  const auto asleep = [&] {
    for (int tries = 0; tries < 100; ++tries) {
      if (b->PrepareToSleep() && !b->Sleep(absl::ZeroDuration())) return true;
      b->Progress();
    }
    return false;
  };
  const auto woken = [&] { return b->Sleep(absl::Seconds(10)); };
  ASSERT_TRUE(asleep());
  const PeerId to_b = *a->Connect(b->address());
  EXPECT_TRUE(woken());
  b->Progress();
  ASSERT_TRUE(asleep());
  a->Send(to_b, HeaderOf(1, 0), {}, nullptr);
  a->Progress();
  EXPECT_TRUE(woken());
  EXPECT_TRUE(b->HasNews());
  EXPECT_FALSE(b->PrepareToSleep());
  b->Progress();
  EXPECT_EQ(b_box.messages.size(), 1u);
  ASSERT_TRUE(asleep());
  b->Wake();
  EXPECT_TRUE(woken());
  EXPECT_FALSE(b->PrepareToSleep());
  b->Progress();
  ASSERT_TRUE(asleep());
  uint64_t count = 1;
  ASSERT_EQ(write(other.get(), &count, sizeof(count)), sizeof(count));
  EXPECT_TRUE(woken());
  ASSERT_EQ(read(other.get(), &count, sizeof(count)), sizeof(count));
  b->Progress();
  ASSERT_TRUE(asleep());
  a.reset();
  EXPECT_TRUE(woken());
}

TEST(SharedMemoryTransportTest, WaitingTwiceWithoutProgressDoesNotSleepOverWhatTheFirstSaw) {
  Postbox box;
  auto transport = MakeTransport(box);
  while (!transport->PrepareToSleep()) transport->Progress();
  transport->Wake();
  ASSERT_TRUE(transport->Sleep(absl::Seconds(10)));
  transport->Wait(absl::InfiniteDuration());
  transport->Wait(absl::InfiniteDuration());
  transport->Progress();
  EXPECT_TRUE(box.messages.empty());
}

TEST(SharedMemoryTransportTest, AWriterThatSleepsIsWokenByWhatIsReturnedWithoutAnAnswer) {
  Postbox a_box, b_box;
  b_box.read_in_place = true;
  auto a = MakeTransport(a_box), b = MakeTransport(b_box);
  const PeerId to_b = *a->Connect(b->address());
  const RegisteredSlab slab(*a, 100'000);
  bool done = false;
  a->Send(to_b, HeaderOf(1, 100'000), slab.slab->memory(),
          [&](const absl::Status&) { done = true; });
  ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return b_box.messages.size() == 1; }));
  while (!a->PrepareToSleep() || a->Sleep(absl::ZeroDuration())) a->Progress();
  b_box.leases.clear();
  b->Wait(absl::ZeroDuration());
  EXPECT_TRUE(a->Sleep(absl::Seconds(10)));
  a->Progress();
  EXPECT_TRUE(done);
}

TEST(ControlSocketTest, WhatWasSaidIsHeardThoughTheSpeakerClosedWithoutListening) {
  const std::string name = LocalAddress::Make()->SocketName();
  auto listener = *ControlSocket::Listen(name);
  std::optional<ControlSocket> speaker = *ControlSocket::Connect(name);
  ControlSocket listening = std::move(**listener.Accept());
  ASSERT_TRUE(listening.Send({.kind = Kind::kBell}).ok());
  for (uint32_t slab = 1; slab <= 2; ++slab) {
    ASSERT_TRUE(speaker->Send({.kind = Kind::kWithdraw, .slab = slab}).ok());
  }
  speaker.reset();

  for (uint32_t slab = 1; slab <= 2; ++slab) {
    auto heard = listening.Receive();
    ASSERT_TRUE(heard.ok() && heard->has_value()) << heard.status();
    EXPECT_EQ((*heard)->packet.slab, slab);
  }
  EXPECT_TRUE(absl::IsUnavailable(listening.Receive().status()));
}

// ---- Against those who speak the protocol to break it.

// Connects to a transport by hand.
class Forger {
 public:
  explicit Forger(const SharedMemoryTransport& transport)
      : socket_(*ControlSocket::Connect(LocalAddress::Decode(transport.address())->SocketName())),
        memory_(
            *SealedMemory::Create("forged", message_ring::kBytes, SealedMemory::Others::kWrite)),
        slab_(*SharedSlab::Allocate(100'000)) {}

  void Say(const ControlPacket& packet, int file = -1) {
    (void)socket_.Send(packet, file);  // may be cut off already
  }
  void SayHello() {
    Say({.kind = Kind::kHello, .bytes = message_ring::kBytes}, memory_.file());
    SayBell();
  }
  void SayBell() { Say({.kind = Kind::kBell}, bell_.fd()); }
  void SaySlab(uint32_t number) {
    Say({.kind = Kind::kSlab, .slab = number, .bytes = slab_->memory().size()}, slab_->fd());
  }
  // Puts `bytes` where the next descriptor is expected.
  void Publish(std::array<std::byte, RingDescriptor::kBytes> bytes) {
    const uint64_t number = ++published_;
    std::byte* entry = memory_.memory().data() + message_ring::kEntriesAt +
                       (number - 1) % message_ring::kEntries * RingDescriptor::kBytes;
    std::memcpy(entry, bytes.data(), bytes.size());
    std::memcpy(entry + 64, &number, sizeof(number));
  }
  void Publish(const RingDescriptor& descriptor) { Publish(EncodeDescriptor(descriptor, 0)); }

  bool IsCutOff() {
    const auto heard = socket_.Receive();
    return absl::IsUnavailable(heard.status());
  }

  ControlSocket socket_;
  SealedMemory memory_;
  std::shared_ptr<SharedSlab> slab_;
  Doorbell bell_ = *Doorbell::Create();
  uint64_t published_ = 0;
};

class ForgerTest : public testing::Test {
 protected:
  // Whether the transport cuts off who does this, and counts it once.
  bool IsCutOff(const std::function<void(Forger&)>& attack) {
    const int64_t before = transport_->malformed_messages();
    Forger forger(*transport_);
    attack(forger);
    const bool cut_off = ProgressUntil(
        {transport_.get()}, [&] { return forger.IsCutOff(); }, std::chrono::seconds(5));
    return cut_off && transport_->malformed_messages() == before + 1;
  }

  // The transport still serves those who behave.
  void ExpectService() {
    Postbox client_box;
    auto client = MakeTransport(client_box);
    const PeerId peer = *client->Connect(transport_->address());
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
  std::unique_ptr<SharedMemoryTransport> transport_ = MakeTransport(postbox_);
};

TEST_F(ForgerTest, WhoMisbehavesOnTheSocketIsCutOff) {
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
    f.Say(hello(message_ring::kBytes), f.memory_.file());
    f.Say({.kind = Kind::kBell}, f.slab_->fd());
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

// Its socket says ECONNRESET before it says what came.
TEST_F(ForgerTest, WhatASenderLeftArrivesThoughItDiedWithoutReadingTheBell) {
  {
    Forger forger(*transport_);
    forger.Say({.kind = Kind::kHello, .bytes = message_ring::kBytes}, forger.memory_.file());
    for (int i = 0; i < 200; ++i) transport_->Progress();
    forger.SayBell();
    forger.Publish({.header = HeaderOf(1, 0)});
  }
  EXPECT_TRUE(ProgressUntil({transport_.get()}, [&] { return postbox_.messages.size() == 1; }));
  EXPECT_EQ(transport_->malformed_messages(), 0);
}

TEST_F(ForgerTest, WhatASenderLeftArrivesThoughItDiedBeforeItsOwnBell) {
  {
    Forger forger(*transport_);
    forger.Say({.kind = Kind::kHello, .bytes = message_ring::kBytes}, forger.memory_.file());
    for (int i = 0; i < 200; ++i) transport_->Progress();
    forger.Publish({.header = HeaderOf(1, 0)});
  }
  EXPECT_TRUE(ProgressUntil({transport_.get()}, [&] { return postbox_.messages.size() == 1; }));
}

TEST_F(ForgerTest, WhoPublishesWhatCannotBeIsCutOff) {
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

TEST_F(ForgerTest, WhoChangesAMessageBetweenItsFragmentsIsCutOff) {
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

TEST_F(ForgerTest, RandomBytesInTheRingAndOnTheSocketKillNothing) {
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
    ASSERT_TRUE(postbox_.losses.empty()) << "seed " << seed;
  }
  EXPECT_GT(transport_->malformed_messages(), 100);
  ExpectService();
}

// The other side of a link: a listener that answers with nonsense.
TEST_F(ForgerTest, AReaderThatReturnsWhatItWasNotLentIsLost) {
  LocalAddress address = *LocalAddress::Make();
  auto listener = *ControlSocket::Listen(address.SocketName());
  const PeerId peer = *transport_->Connect(address.Encode());
  const RegisteredSlab slab(*transport_, 100'000);
  int failed = 0;
  transport_->Send(peer, HeaderOf(1, 100'000), slab.slab->memory(),
                   [&](const absl::Status& status) { failed += !status.ok(); });
  auto accepted = listener.Accept();
  ASSERT_TRUE(accepted.ok() && accepted->has_value()) << accepted.status();
  auto hello = (*accepted)->Receive();
  ASSERT_TRUE(hello.ok() && hello->has_value()) << hello.status();
  auto memory =
      SealedMemory::Map((*hello)->file, message_ring::kBytes, SealedMemory::Access::kReadWrite);
  ASSERT_TRUE(memory.ok()) << memory.status();

  MessageRingReader reader(memory->memory());
  for (uint32_t i = 1; i <= 600; ++i) reader.Return(4'000'000'000u + i);

  ASSERT_TRUE(ProgressUntil({transport_.get()},
                            [&] { return failed == 1 && postbox_.losses.size() == 1; }));
  EXPECT_EQ(transport_->malformed_messages(), 1);
  ExpectService();
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "--echo") return muster::Echo();
  if (role == "--hold") return muster::Hold();
  if (role == "--lend") return muster::Lend();
  if (role == "--pour") return muster::Pour();
  if (role == "--stranger") return muster::Stranger();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
