// Whose large payload a receiver fetches next.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lib/transport/core/transport.h"

namespace muster {

// Connections share a network card unevenly, by a factor of two and more. So of several senders the
// one of whom least has been fetched is next, and little is fetched at the same time: their
// payloads arrive side by side, and a shard has the last gradient of a chunk soon after the first.
// A sender is a peer. What one sends is fetched in order.
//
// Thread-compatible. Allocates for a sender that it has not seen, and while more is being fetched
// than ever before.
class FetchTurns {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Options {
    // Fetched at the same time, but this many payloads at least: more than is on its way while word
    // goes to the sender that memory is named, behind all that this side sends.
    size_t bytes_max = 1 << 20;
    size_t fetches_min = 4;
    // A payload that takes longer is not waited for: its sender is slow, and not only out of turn.
    std::chrono::nanoseconds patience = std::chrono::milliseconds(100);
  };

  struct Sender;
  // A payload, from Wait() to End() or Abandon().
  class Payload {
   private:
    friend class FetchTurns;
    Sender* sender_ = nullptr;
    size_t bytes_ = 0;
    Payload* next_ = nullptr;  // of its sender, waiting
    Time begin_;
  };

  FetchTurns();
  explicit FetchTurns(const Options& options);
  FetchTurns(const FetchTurns&) = delete;
  FetchTurns& operator=(const FetchTurns&) = delete;
  ~FetchTurns();

  // It is there to be fetched.
  void Wait(Payload* payload, PeerId sender, size_t bytes);
  // The one that is fetched from `now` on; null: none waits, or none may be fetched yet.
  Payload* Begin(Time now);
  // It was fetched, or cannot be.
  void End(Payload* payload);
  // It waits, and never will be fetched.
  void Leave(Payload* payload);
  // One that waits, of `sender`, and never will be fetched; null: there is none.
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
  std::vector<const Payload*> fetching_;  // but those that take too long
};

}  // namespace muster
