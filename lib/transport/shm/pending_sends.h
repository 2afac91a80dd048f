// The unfinished sends of a transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"

namespace muster {

// A send. Either `copied` bytes of its payload are in the link's memory, or it is lent from `slab`.
struct PendingSend {
  WireHeader header;
  absl::Span<const std::byte> payload;
  size_t copied = 0;
  uint32_t slab = 0;
  Transport::SendDone done;
  PendingSend* next = nullptr;  // in the link's queue
};

// A pool that grows to the largest number of sends in progress at once, so that a message allocates
// nothing. Thread-compatible.
class PendingSends {
 public:
  // Returns a new send, which is valid until Finish() or FinishLater().
  PendingSend* Begin(const WireHeader& header, absl::Span<const std::byte> payload,
                     Transport::SendDone done) {
    if (free_.empty()) {
      sends_.push_back(std::make_unique<PendingSend>());
      free_.push_back(sends_.back().get());
    }
    PendingSend* send = free_.back();
    free_.pop_back();
    *send = {.header = header, .payload = payload, .done = std::move(done)};
    return send;
  }

  // Ends the send and calls its `done`, which may call anything.
  void Finish(PendingSend* send, const absl::Status& status) {
    Transport::SendDone done = std::move(send->done);
    free_.push_back(send);
    if (done) done(status);
  }

  // Ends the send where callbacks must not run: the next CallFinished() calls its `done`.
  void FinishLater(PendingSend* send, const absl::Status& status) {
    if (send->done) finished_.push_back({std::move(send->done), status});
    free_.push_back(send);
  }
  bool has_finished() const { return !finished_.empty(); }
  // Calls the `done` callbacks and returns their number. Sends that they finish wait for the next
  // call.
  int CallFinished() {
    calling_.swap(finished_);
    for (Finished& send : calling_) send.done(send.status);
    const int count = static_cast<int>(calling_.size());
    calling_.clear();
    return count;
  }

  // Drops all `done` callbacks without calling them.
  void Forget() {
    for (auto& send : sends_) send->done = nullptr;
    finished_.clear();
  }

 private:
  struct Finished {
    Transport::SendDone done;
    absl::Status status;
  };

  std::vector<std::unique_ptr<PendingSend>> sends_;
  std::vector<PendingSend*> free_;
  std::vector<Finished> finished_, calling_;
};

}  // namespace muster
