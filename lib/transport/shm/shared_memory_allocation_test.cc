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
#include "lib/transport/core/shared_slab.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "lib/transport/shm/shared_memory_transport.h"
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

namespace muster::shared_memory_allocation_test {
namespace {

// Receives every payload into the same memory, or reads it in place, as a shard does.
class Reader : public MessageReceiver {
 public:
  explicit Reader(bool in_place) : in_place_(in_place) {}

  void PeerJoined(PeerId peer, const LinkIdentity&) override { joined = peer; }
  PayloadPlace PlacePayload(PeerId, const WireHeader& header) override {
    return {absl::MakeSpan(memory_).first(header.length), in_place_};
  }
  void Received(PeerId, const WireHeader&, absl::Span<const std::byte>, PayloadLease) override {
    ++received;
  }
  void PayloadLost(PeerId, const WireHeader&) override {}
  void PeerLost(PeerId, const absl::Status&) override {}

  PeerId joined = PeerId::kNone;
  int received = 0;

 private:
  const bool in_place_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(4 << 20);
};

TEST(SharedMemoryAllocationTest, MessagesBetweenConnectedTransportsAllocateNothing) {
  Reader a_reader(/*in_place=*/false), b_reader(/*in_place=*/true);
  const auto a_loop = *EventLoop::Create(), b_loop = *EventLoop::Create();
  const auto a = *SharedMemoryTransport::Create(a_loop.get());
  const auto b = *SharedMemoryTransport::Create(b_loop.get());
  a->SetReceiver(&a_reader);
  b->SetReceiver(&b_reader);
  OpenTestSession(*b);
  const PeerId to_b = *a->Connect(b->address(), CredentialsOf(0));
  ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return b_reader.joined != PeerId::kNone; }));
  const PeerId to_a = b_reader.joined;
  const auto slab = *SharedSlab::Allocate(4 << 20);
  const auto registered_a = *a->RegisterMemory(slab->memory());
  const auto registered_b = *b->RegisterMemory(slab->memory());
  const std::vector<std::byte> heap(4 << 20);
  int rounds = 0;
  auto exchange = [&](absl::Span<const std::byte> payload) {
    ++rounds;
    int dones = 0;
    a->Send(to_b, HeaderOf(1, payload.size()), payload, [&](const absl::Status&) { ++dones; });
    b->Send(to_a, HeaderOf(1, payload.size()), payload, [&](const absl::Status&) { ++dones; });
    return ProgressUntil({a.get(), b.get()}, [&] {
      return dones == 2 && a_reader.received == rounds && b_reader.received == rounds;
    });
  };
  for (const absl::Span<const std::byte> memory :
       {absl::MakeConstSpan(heap), absl::Span<const std::byte>(slab->memory())}) {
    for (size_t size : {4 << 20, 4096, 20'000, 0, 100}) ASSERT_TRUE(exchange(memory.first(size)));
    for (size_t size : {4 << 20, 4096, 20'000, 0, 100}) {
      allocations = 0;
      for (int i = 0; i < 50; ++i) ASSERT_TRUE(exchange(memory.first(size)));
      EXPECT_EQ(allocations, 0) << "payloads of " << size << " bytes";
    }
  }
}

}  // namespace
}  // namespace muster::shared_memory_allocation_test
