// Decides which sender's large payload a receiver fetches next.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lib/transport/core/transport.h"

namespace muster {

// Connections share a network card unevenly, by a factor of two and more. FetchTurns balances the
// senders: it picks the sender from which the fewest bytes were fetched, and limits how much is
// fetched at once. So the senders' payloads arrive side by side, and a shard receives the last
// gradient of a chunk soon after the first.
//
// A sender is a peer. Payloads of one sender are fetched in order.
//
// Thread-compatible. Allocates for a new sender, and when more payloads than ever before are being
// fetched.
class FetchTurns {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Options {
    // A fetch may begin while fewer bytes than this, or fewer payloads than `fetches_min`, are
    // being fetched. By default large enough that fetches continue while the next sender learns
    // where its payload goes: that message queues behind everything this side sends.
    size_t bytes_max = 1 << 20;
    size_t fetches_min = 4;
    // A payload that takes longer than this no longer counts against bytes_max and fetches_min, so
    // a slow sender does not hold back the others.
    std::chrono::nanoseconds patience = std::chrono::milliseconds(100);
  };

  struct Sender;
  // A payload. Must stay valid from Wait() to End(), Leave() or Abandon().
  class Payload {
   private:
    friend class FetchTurns;
    Sender* sender_ = nullptr;
    size_t bytes_ = 0;
    Payload* next_ = nullptr;  // the next waiting payload of the same sender
    Time begin_;
  };

  FetchTurns();
  explicit FetchTurns(const Options& options);
  FetchTurns(const FetchTurns&) = delete;
  FetchTurns& operator=(const FetchTurns&) = delete;
  ~FetchTurns();

  // Adds a payload that is ready to be fetched.
  void Wait(Payload* payload, PeerId sender, size_t bytes);
  // Returns the payload to fetch from `now` on. Null if none waits, or if none may start yet.
  Payload* Begin(Time now);
  // Ends the turn of a payload that was fetched, or that cannot be.
  void End(Payload* payload);
  // Removes a waiting payload that will never be fetched.
  void Leave(Payload* payload);
  // Removes and returns a waiting payload of `sender` that will never be fetched. Null if there is
  // none.
  Payload* Abandon(PeerId sender);

  bool waiting() const { return waiting_ > 0; }
  std::chrono::nanoseconds patience() const { return options_.patience; }

 private:
  bool MayBegin(Time now);
  Sender& Find(PeerId sender);
  Sender* Next() const;
  Payload* TakeFirst(Sender& sender);
  uint64_t LeastBegun() const;

  const Options options_;
  absl::flat_hash_map<PeerId, std::unique_ptr<Sender>> senders_;
  int waiting_ = 0;
  std::vector<const Payload*> fetching_;  // without those that take too long
};

}  // namespace muster
