// The thread of an exchange that owns the exchange's transport.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "lib/plan/numbers.h"
#include "lib/transport/core/transport.h"

namespace muster {

// The thread creates the transport, registers memory with it, and then runs turns. In a turn it
// hands posted chunks to `work`, moves messages, and sleeps in the transport if there was nothing
// to do.
class CommunicationThread {
 public:
  // The work on the thread, besides receiving messages. Called only on the thread.
  class Work : public MessageReceiver {
   public:
    // Called once, before the first turn. Start() returns its error, and nothing else is called
    // then.
    virtual absl::Status Open(Transport& transport) = 0;
    // Called in every turn, before messages are moved. `posted` holds the chunks posted since the
    // last turn, in order.
    virtual void Turn(absl::Span<const ChunkId> posted) = 0;
    // Called after the last turn, before the transport is destroyed. Must return all leases.
    virtual void Closing() = 0;
  };

  // `transport` is called on the thread. There is room for `posts_max` posts from the start; more
  // posts allocate. `work` must outlive the thread.
  CommunicationThread(TransportFactory transport, size_t posts_max, Work* work);
  ~CommunicationThread() { Close(); }

  // Starts the thread, which registers `memory`. `memory` must outlive the thread. Blocks until the
  // transport is open, but waits for no peer. Returns the error of the factory, of the registration
  // or of Work::Open(). Call once.
  absl::Status Start(std::vector<absl::Span<std::byte>> memory) ABSL_LOCKS_EXCLUDED(mu_);

  // Hands `chunk` to a turn. Callable from any thread. Only the first of several posts wakes the
  // thread.
  void Post(ChunkId chunk) ABSL_LOCKS_EXCLUDED(mu_);

  // Schedules one turn of the thread. No-op before the first turn, which handles everything posted
  // so far. Callable from any thread, until Closing() or Close() is called.
  //
  // Takes no lock, and Post() calls it without one. The woken thread takes that lock at once; if
  // the caller still held it, the thread would go back to sleep. Other callers of Post() would also
  // wait for the system call of Wake(). The transport needs no lock either, because it lives until
  // the thread ends.
  void Wake();

  // Ends and joins the thread. Drops posts and transfers. The transport is destroyed before the
  // registrations of the memory, which a transfer may still use.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);
  // True after Close(): later errors come from dropped transfers.
  bool closing() const { return closing_.load(std::memory_order_acquire); }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Open();
  absl::Span<const ChunkId> TakePosted() ABSL_LOCKS_EXCLUDED(mu_);

  const TransportFactory make_transport_;
  Work* const work_;
  std::vector<absl::Span<std::byte>> memory_;  // const after Start()

  // Used only by the thread.
  std::unique_ptr<Transport> transport_;
  std::vector<std::unique_ptr<Transport::MemoryRegistration>> registrations_;
  std::vector<ChunkId> taken_;  // taken from posted_ for this turn

  std::atomic<Transport*> waking_ = nullptr;  // transport_, from the first turn on
  std::atomic<bool> has_posts_ = false;       // posted_ is not empty; spares the thread the lock
  std::atomic<bool> closing_ = false;

  absl::Mutex mu_;
  std::vector<ChunkId> posted_ ABSL_GUARDED_BY(mu_);
  bool opened_ ABSL_GUARDED_BY(mu_) = false;  // or failed to open: `open_error_`
  absl::Status open_error_ ABSL_GUARDED_BY(mu_);

  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace muster
