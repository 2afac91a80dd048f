// The data path allocates nothing per message. This is a separate program because it replaces
// malloc.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/tcp/data_port.h"
#include "lib/transport/tcp/tcp_transport.h"
#include "lib/transport/testing/postbox.h"

namespace {

std::atomic<int64_t> allocations = 0;

}  // namespace

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);

void* malloc(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(memory, size);
}
}

namespace muster::tcp_allocation_test {
namespace {

// Receives every payload into the same memory, as a shard does.
class Reader : public MessageReceiver {
 public:
  void PeerJoined(PeerId peer, const LinkIdentity&) override { joined = peer; }
  PayloadPlace PlacePayload(PeerId, const WireHeader& header) override {
    return absl::MakeSpan(memory_).first(header.length);
  }
  void Received(PeerId, const WireHeader&, absl::Span<const std::byte>, PayloadLease) override {
    ++received;
  }
  void PayloadLost(PeerId, const WireHeader&) override {}
  void PeerLost(PeerId, const absl::Status&) override {}

  PeerId joined = PeerId::kNone;
  int received = 0;

 private:
  std::vector<std::byte> memory_ = std::vector<std::byte>(4 << 20);
};

TEST(TcpAllocationTest, MessagesBetweenConnectedTransportsAllocateNothing) {
  const DataPortOptions options{.bind_host = "127.0.0.1", .checksums = Checksums::kOn};
  Reader a_reader, b_reader;
  const auto a_loop = *EventLoop::Create(), b_loop = *EventLoop::Create();
  const auto a = *TcpTransport::Create(a_loop.get(), {.port = *DataPort::Open(options)});
  const auto b = *TcpTransport::Create(b_loop.get(), {.port = *DataPort::Open(options)});
  a->SetReceiver(&a_reader);
  b->SetReceiver(&b_reader);
  OpenTestSession(*b);
  const PeerId to_b = *a->Connect(b->address(), CredentialsOf(0));
  ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return b_reader.joined != PeerId::kNone; }));
  const PeerId to_a = b_reader.joined;
  const std::vector<std::byte> payload(4 << 20);
  int rounds = 0;
  // Two messages each way: one is written at once, the other waits for the next turn.
  const auto exchange = [&](size_t size) {
    rounds += 2;
    int dones = 0;
    for (int i = 0; i < 2; ++i) {
      const auto bytes = absl::MakeConstSpan(payload).first(size);
      a->Send(to_b, HeaderOf(1, size), bytes, [&](const absl::Status&) { ++dones; });
      b->Send(to_a, HeaderOf(1, size), bytes, [&](const absl::Status&) { ++dones; });
    }
    return ProgressUntil({a.get(), b.get()}, [&] {
      return dones == 4 && a_reader.received == rounds && b_reader.received == rounds;
    });
  };
  const size_t sizes[] = {4 << 20, 4096, 20'000, 0, 100};
  for (const size_t size : sizes) ASSERT_TRUE(exchange(size));
  for (const size_t size : sizes) {
    allocations = 0;
    ASSERT_TRUE(exchange(size));
    EXPECT_EQ(allocations, 0) << size << " bytes";
  }
}

}  // namespace
}  // namespace muster::tcp_allocation_test
