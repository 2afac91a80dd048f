// A network inside one process: transports for tests and simulations, and the faults to try them
// with.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"

namespace muster {

// The hub that its transports meet on. Thread-safe; outlives its transports.
//
// Each transport delivers what arrives in the order in which it was sent, over all its peers. A
// payload is copied once, from the sender's memory to where the receiver places it, by the
// receiver's Progress(); the sender's `done` runs in the sender's next Progress(). As over shared
// memory, a payload in a SharedSlab is lent instead where it may be read in place. Destroying a
// transport is the death of a peer: what it had sent and what had not been delivered to it is lost,
// and everyone connected to it hears PeerLost.
class InProcessNetwork {
 public:
  // What becomes of one message. Unless it is delivered or breaks, the sender's `done` hears OK at
  // once.
  enum class Fate {
    kDeliver,
    kDrop,
    kDuplicate,  // delivered twice in a row
    kHold,       // delivered after ReleaseHeld()
    kBreak,      // its payload is lost after the receiver has named memory (PayloadLost)
  };
  using Fault = absl::AnyInvocable<Fate(const WireHeader&)>;

  InProcessNetwork();
  InProcessNetwork(const InProcessNetwork&) = delete;
  InProcessNetwork& operator=(const InProcessNetwork&) = delete;
  ~InProcessNetwork();

  // Its address is "inprocess:<number>".
  std::unique_ptr<Transport> MakeTransport() ABSL_LOCKS_EXCLUDED(mu_);

  // Decides the fate of every message sent from now on; nullptr delivers all. Called one message at
  // a time, from the sending threads; must not call back into the network.
  void SetFault(Fault fault) ABSL_LOCKS_EXCLUDED(mu_);

  // Delivers what is held, in the order in which it was sent.
  void ReleaseHeld() ABSL_LOCKS_EXCLUDED(mu_);

  // Payloads whose receivers wanted them past the caches (PayloadPlace), where they are all the
  // same to this network.
  int64_t placed_past_caches() const { return placed_past_caches_; }

 private:
  friend class InProcessTransport;
  struct Inbox;  // of one transport

  Inbox* Find(int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  Fault fault_ ABSL_GUARDED_BY(mu_);
  std::atomic<int64_t> placed_past_caches_ = 0;
  int64_t transports_made_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<int64_t, std::unique_ptr<Inbox>> inboxes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
