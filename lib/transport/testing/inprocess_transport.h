// A network inside one process: transports for tests and simulations, with injected faults.
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

// The hub of its transports. Thread-safe. Must outlive its transports.
//
// Each transport delivers messages in the order in which they were sent, over all its peers. The
// receiver's Progress() copies a payload once, from the sender's memory to its place. The sender's
// `done` runs in the sender's next Progress(). A payload in a SharedSlab is lent if it may be read
// in place, as over shared memory.
//
// Destroying a transport simulates the death of a peer: messages from and to it that were not
// delivered are lost, and every connected peer gets PeerLost.
class InProcessNetwork {
 public:
  // The fate of one message. Except for kDeliver and kBreak, the sender's `done` gets OK without
  // waiting for the receiver.
  enum class Fate {
    kDeliver,
    kDrop,
    kDuplicate,  // delivered twice in a row
    kHold,       // delivered after ReleaseHeld()
    kBreak,      // lost after the receiver has placed it (PayloadLost)
  };
  using Fault = absl::AnyInvocable<Fate(const WireHeader&)>;

  InProcessNetwork();
  InProcessNetwork(const InProcessNetwork&) = delete;
  InProcessNetwork& operator=(const InProcessNetwork&) = delete;
  ~InProcessNetwork();

  // The transport's address is "inprocess:<number>".
  std::unique_ptr<Transport> MakeTransport() ABSL_LOCKS_EXCLUDED(mu_);

  // Sets the function that decides the fate of every message sent from now on; nullptr delivers
  // all. It is called for one message at a time, on the sending threads. It must not call the
  // network.
  void SetFault(Fault fault) ABSL_LOCKS_EXCLUDED(mu_);

  // Delivers the held messages in the order in which they were sent.
  void ReleaseHeld() ABSL_LOCKS_EXCLUDED(mu_);

  // The number of payloads with past_caches set in their PayloadPlace. This network treats them
  // like all others.
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
