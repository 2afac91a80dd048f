// The thread of an exchange that owns its transport.
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

// Makes the transport, registers memory with it, and then turns: hands the work what was posted,
// moves messages, and sleeps in the transport when there was nothing to do.
class CommunicationThread {
 public:
  // What is done on the thread, besides receiving messages. Called on it only.
  class Work : public MessageReceiver {
   public:
    // Once, before the first turn. After a failure, which Start() returns, nothing is called.
    virtual absl::Status Open(Transport& transport) = 0;
    // Before messages are moved, each time: `posted`, in order, is what came since the last turn.
    virtual void Turn(absl::Span<const ChunkId> posted) = 0;
    // After the last turn, before the transport goes: returns all leases.
    virtual void Closing() = 0;
  };

  // `transport` is called on the thread. There is room for `posts_max` posts from the start; more
  // are allocated for. `work` outlives the thread.
  CommunicationThread(TransportFactory transport, size_t posts_max, Work* work);
  ~CommunicationThread() { Close(); }

  // Starts the thread, which registers `memory` (it outlives the thread), and returns when the
  // transport is open, or why it is not: the error of the factory, of the registration or of
  // Work::Open(). Waits for no peer. Call once.
  absl::Status Start(std::vector<absl::Span<std::byte>> memory) ABSL_LOCKS_EXCLUDED(mu_);

  // Hands `chunk` to a turn. Any thread; wakes the thread for the first of several.
  void Post(ChunkId chunk) ABSL_LOCKS_EXCLUDED(mu_);

  // Has a turn done soon. Does nothing before the first turn, which sees all that came before. Any
  // thread, until Closing() or Close() is called.
  //
  // Takes no lock, and Post() calls it under none: whoever is woken takes the lock of what was
  // posted at once and would only go back to sleep where its waker still held that, and others who
  // post would wait for the waker's system call. No lock is needed to keep the transport either: it
  // lives until the thread ends.
  void Wake();

  // Ends and joins the thread. Drops what was posted and is in flight; the transport is gone before
  // the registrations of the memory that a transfer under way still uses.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);
  // Close() was called: what is lost now was dropped.
  bool closing() const { return closing_.load(std::memory_order_acquire); }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Open();
  absl::Span<const ChunkId> TakePosted() ABSL_LOCKS_EXCLUDED(mu_);

  const TransportFactory make_transport_;
  Work* const work_;
  std::vector<absl::Span<std::byte>> memory_;  // const from Start() on

  // The thread's.
  std::unique_ptr<Transport> transport_;
  std::vector<std::unique_ptr<Transport::MemoryRegistration>> registrations_;
  std::vector<ChunkId> taken_;  // from posted_, being looked at

  std::atomic<Transport*> waking_ = nullptr;  // transport_, from the first turn on
  std::atomic<bool> has_posts_ = false;       // spares the thread the lock: posted_ is not empty
  std::atomic<bool> closing_ = false;

  absl::Mutex mu_;
  std::vector<ChunkId> posted_ ABSL_GUARDED_BY(mu_);
  bool opened_ ABSL_GUARDED_BY(mu_) = false;  // or failed to: `open_error_`
  absl::Status open_error_ ABSL_GUARDED_BY(mu_);

  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace muster
