// The values that a shard sends to the ranks of its job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "lib/codec/codec.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/chunk_store.h"
#include "lib/shard/chunks/payload_tickets.h"
#include "lib/shard/core/shard_output.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Values are sent from the buffers of the store, encoded once per version if the wire format has 16
// bits. A buffer must not be overwritten while a payload is under way from it; FreeBuffer() finds
// one.
//
// Each rank has at most one answer to a fetch per chunk under way: a rank may fetch faster than its
// link carries answers, and answers under way keep values from being overwritten. Of further
// fetches in the meantime only the last is answered.
//
// Thread-compatible: runs on the shard's thread, has no lock, and never blocks. Nothing is
// allocated after construction. Callbacks run inside the `done` of a message.
class ShardAnswers {
 public:
  // `plan` and `store` must outlive this object. `freed` is called when the last payload has left a
  // buffer of the chunk. `fetch` is called with the fetch that waited for the one before.
  ShardAnswers(const v1::JobPlan& plan, const ChunkStore& store,
               std::function<void(LocalChunk)> freed,
               std::function<void(LocalChunk, Rank, int64_t step)> fetch);

  // Takes over what is encoded. Requires: `before` has the same store.
  void TakeUp(const ShardAnswers& before);
  void set_output(ShardOutput* output) { output_ = output; }

  // Returns whether a fetch may be answered now. If not, it waits for the answer under way.
  bool BeginFetch(LocalChunk chunk, Rank rank, int64_t step);
  // Forgets the fetches of the rank that wait.
  void RankLost(Rank rank);

  // One PARAMS message.
  struct Answer {
    LocalChunk chunk{};
    ChunkStore::Version version;
    Rank rank{};
    int64_t step = 0;
    double squares = 0;
    float loss_scale = 0;
    bool is_fetch = false;  // answers a fetch that BeginFetch() let through
  };
  void Send(const Answer& answer);

  // Returns the buffer for the values of the next version, or -1 if all are being sent. Keeps the
  // version before if another buffer is free, because a rank may still fetch it.
  int FreeBuffer(LocalChunk chunk, const ChunkStore::Version& current,
                 const ChunkStore::Version& previous) const;
  // Records that new values are in the buffer. `encoded`: also in the wire format.
  void Stored(LocalChunk chunk, int buffer, bool encoded);

  // True if no payload is being sent.
  bool idle() const { return tickets_.all_back(); }

 private:
  using Tickets = PayloadTickets<ShardAnswers>;
  struct Buffer {
    int sending = 0;       // payloads under way from it
    bool encoded = false;  // up to date in the wire format
  };
  struct Chunk {
    std::vector<Buffer> buffers;            // by values buffer
    std::unique_ptr<ChunkEncoder> encoder;  // of values sent in 16 bits
  };
  struct Fetching {
    bool answering = false;
    int64_t waiting = -1;  // the step of the next fetch to answer; -1: none
  };

  absl::Span<const std::byte> WireValues(LocalChunk chunk, const ChunkStore::Version& version);
  void Sent(LocalChunk chunk, int buffer, Rank fetcher);

  const v1::JobPlan& plan_;
  const ChunkStore& store_;
  const std::function<void(LocalChunk)> freed_;
  const std::function<void(LocalChunk, Rank, int64_t step)> fetch_;
  ShardOutput* output_ = nullptr;
  Tickets tickets_{this};
  NumberedVector<LocalChunk, Chunk> chunks_;
  NumberedTable<LocalChunk, Rank, Fetching> fetching_;
};

}  // namespace muster
