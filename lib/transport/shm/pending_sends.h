// The sends of a transport that are not done yet.
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

// `copied` bytes of it are in the link's own memory; or it is lent, from `slab`.
struct PendingSend {
  WireHeader header;
  absl::Span<const std::byte> payload;
  size_t copied = 0;
  uint32_t slab = 0;
  Transport::SendDone done;
  PendingSend* next = nullptr;  // in the queue of its link
};

// As large as the largest number that was under way together, so that a message allocates nothing.
// Thread-compatible.
class PendingSends {
 public:
  // Valid until it is finished.
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

  // Calls `done`, which may call anything.
  void Finish(PendingSend* send, const absl::Status& status) {
    Transport::SendDone done = std::move(send->done);
    free_.push_back(send);
    if (done) done(status);
  }

  // Where nothing may be called: CallFinished() calls `done`.
  void FinishLater(PendingSend* send, const absl::Status& status) {
    if (send->done) finished_.push_back({std::move(send->done), status});
    free_.push_back(send);
  }
  bool has_finished() const { return !finished_.empty(); }
  // How many were. What they finish in turn is left for the next time.
  int CallFinished() {
    calling_.swap(finished_);
    for (Finished& send : calling_) send.done(send.status);
    const int count = static_cast<int>(calling_.size());
    calling_.clear();
    return count;
  }

  // No `done` is called any more.
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
