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
#include "lib/transport/session/session.h"
#include "lib/transport/testing/postbox.h"
#include "lib/transport/ucx/ucx_transport.h"

namespace {

std::atomic<int64_t> allocations = 0;
std::atomic<size_t> largest = 0;

void Count(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (size > largest.load(std::memory_order_relaxed)) largest = size;
}

}  // namespace

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);

void* malloc(size_t size) {
  Count(size);
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  Count(count * size);
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) {
  Count(size);
  return __libc_realloc(memory, size);
}
}

namespace muster::ucx_allocation_test {
namespace {

// Receives every payload into the same memory, as a shard does.
class FixedPlace : public MessageReceiver {
 public:
  void PeerJoined(PeerId peer, const LinkIdentity&) override { joined = peer; }
  PayloadPlace PlacePayload(PeerId, const WireHeader& header) override {
    return absl::MakeSpan(memory_).first(header.length);
  }
  void Received(PeerId, const WireHeader&, absl::Span<const std::byte>, PayloadLease) override {
    ++received;
  }
  void PayloadLost(PeerId, const WireHeader&) override { ++losses; }
  void PeerLost(PeerId, const absl::Status&) override { ++losses; }

  PeerId joined = PeerId::kNone;
  int received = 0;
  int losses = 0;

 private:
  std::vector<std::byte> memory_ = std::vector<std::byte>(4 << 20);
};

TEST(UcxAllocationTest, MessagesBetweenConnectedTransportsAllocateNothing) {
  FixedPlace a_place, b_place;
  const UcxTransportOptions options = {.networks = UcxTransportOptions::Networks::kAny};
  const auto a_loop = *EventLoop::Create(), b_loop = *EventLoop::Create();
  auto a = *UcxTransport::Create(a_loop.get(), options);
  auto b = *UcxTransport::Create(b_loop.get(), options);
  a->SetReceiver(&a_place);
  b->SetReceiver(&b_place);
  OpenTestSession(*b);
  const PeerId to_b = *a->Connect(b->address(), CredentialsOf(0));
  ASSERT_TRUE(ProgressUntil({a.get(), b.get()}, [&] { return b_place.joined != PeerId::kNone; }));
  const PeerId to_a = b_place.joined;
  const std::vector<std::byte> payload = PatternOf(1, 4 << 20);
  int rounds = 0;
  auto exchange = [&](size_t size) {
    ++rounds;
    int dones = 0;
    const auto part = absl::MakeConstSpan(payload).first(size);
    a->Send(to_b, HeaderOf(1, size), part, [&](const absl::Status&) { ++dones; });
    b->Send(to_a, HeaderOf(1, size), part, [&](const absl::Status&) { ++dones; });
    return ProgressUntil({a.get(), b.get()}, [&] {
      return dones == 2 && a_place.received == rounds && b_place.received == rounds;
    });
  };
  for (size_t size : {4 << 20, 4096, 20'000, 0, 16'000}) ASSERT_TRUE(exchange(size));

  for (size_t size : {4 << 20, 4096, 20'000, 0, 16'000}) {
    allocations = 0;
    largest = 0;
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(exchange(size));
    // UCX's pools may still grow now and then.
    EXPECT_LT(largest, 4096u) << "payloads of " << size << " bytes";
    EXPECT_LT(allocations, 40 / 4) << "payloads of " << size << " bytes";
  }
}

}  // namespace
}  // namespace muster::ucx_allocation_test
