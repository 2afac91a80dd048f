// A receiver for tests that keeps everything that arrives.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"

namespace muster {

class Postbox : public MessageReceiver {
 public:
  struct Message {
    PeerId from;
    WireHeader header;
    absl::Span<const std::byte> payload;
  };

  void PeerJoined(PeerId peer, const LinkIdentity& who) override { joined.emplace_back(peer, who); }
  PayloadPlace PlacePayload(PeerId, const WireHeader& header) override {
    if (refuse_payloads) return {};
    memory_.push_back(std::make_unique<std::byte[]>(header.length));
    PayloadPlace place({memory_.back().get(), header.length}, read_in_place);
    place.past_caches = past_caches;
    return place;
  }
  void Received(PeerId from, const WireHeader& header, absl::Span<const std::byte> payload,
                PayloadLease lease) override {
    messages.push_back({from, header, payload});
    leases.push_back(std::move(lease));
    if (on_message) on_message(messages.back());
  }
  void PayloadLost(PeerId from, const WireHeader& header) override {
    lost_payloads.emplace_back(from, header);
  }
  void PeerLost(PeerId peer, const absl::Status& why) override { losses.emplace_back(peer, why); }

  std::vector<std::pair<PeerId, LinkIdentity>> joined;
  std::vector<Message> messages;
  std::vector<std::pair<PeerId, WireHeader>> lost_payloads;
  // One for each message; clear it before the transport is destroyed.
  std::vector<PayloadLease> leases;
  std::vector<std::pair<PeerId, absl::Status>> losses;
  bool refuse_payloads = false;
  bool read_in_place = false;
  bool past_caches = false;
  std::function<void(const Message&)> on_message;

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

// Credentials for the session that every test transport opens with OpenTestSession().
inline LinkCredentials CredentialsOf(uint32_t index, LinkRole role = LinkRole::kWorker) {
  return {.self = {.job = 1, .generation = 1, .role = role, .index = index}, .token = {}};
}

inline void OpenTestSession(Transport& transport) { transport.OpenSession(1, 1, SessionToken()); }

// Returns bytes that differ between messages and positions.
inline std::vector<std::byte> PatternOf(uint64_t seed, size_t size) {
  std::vector<std::byte> bytes(size);
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (size_t i = 0; i < size; ++i) {
    if (i % 8 == 0) state = state * 6364136223846793005 + 1442695040888963407;
    bytes[i] = static_cast<std::byte>(state >> (8 * (i % 8)));
  }
  return bytes;
}

inline WireHeader HeaderOf(uint32_t chunk, size_t length) {
  return {.kind = MessageKind::kPush, .dtype = WireDType::kF32, .chunk = chunk, .length = length};
}

// Calls Progress() of `transports` on this thread until `condition` holds. Returns false after
// `limit`.
template <typename Condition>
bool ProgressUntil(std::initializer_list<Transport*> transports, const Condition& condition,
                   std::chrono::seconds limit = std::chrono::seconds(30)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    int events = 0;
    for (Transport* transport : transports) events += transport->Progress();
    if (events == 0) (*transports.begin())->Wait(absl::Milliseconds(1));
  }
  return true;
}

}  // namespace muster
