// Reads blocks of neighbouring records, for a block shuffle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "lib/data/file/indexed_files.h"
#include "lib/data/file/record_index.h"
#include "lib/data/order/sample_ref.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Block b has the samples [b * K, (b + 1) * K). Its first use in an epoch reads the whole block
// into memory, if there is room. The block leaves memory when all its samples were used, or some
// time after its window: another worker may use some of its samples. The next block takes its
// memory, because new pages cost as much as parsing the records.
//
// A block that left too early, or that found no room, is not read again while it is in use: the
// caller reads its samples one by one. So an epoch in block order reads no byte more than twice.
//
// Thread-safe.
class RecordBlocks {
 private:
  struct Block;

 public:
  struct Options {
    std::shared_ptr<const RecordIndex> index;
    const IndexedFiles* files = nullptr;  // of the index; outlives the object
    int64_t samples = 0;                  // those in blocks are [0, samples)
    int64_t tail_bytes = 0;               // that are read behind each place
    int64_t bytes_max = 0;                // of memory
    int64_t block_samples = 0;            // K, >= 1
    int64_t batches_in_use = 0;           // after that of its first use, a block is not used
  };
  explicit RecordBlocks(Options options);

  // Returns blocks for the block shuffle of a job. The others of `options` must be set. Returns
  // null if the job has another order, if there is no memory, or if a block is so small that
  // reading it costs as much as reading its records.
  static std::unique_ptr<RecordBlocks> ForShuffle(const v1::DataSpec& data, Options options);
  ~RecordBlocks();  // Requires: nothing is held.
  RecordBlocks(const RecordBlocks&) = delete;
  RecordBlocks& operator=(const RecordBlocks&) = delete;

  // The blocks of some samples. They stay in memory as long as this object.
  class Held {
   public:
    Held(Held&&) = default;
    ~Held();
    Held& operator=(Held&&) = delete;

    // Returns the bytes at a place of sample number `i` of those that are held, with its tail.
    // Null: the caller must read them.
    const std::byte* Find(size_t i, const RecordIndex::Place& place) const;

   private:
    friend class RecordBlocks;
    explicit Held(RecordBlocks& owner) : owner_(owner) {}
    RecordBlocks& owner_;
    std::vector<Block*> blocks_;  // by sample; null: it is not in memory
  };

  // Uses samples of batch number `batch` once. Blocks while this thread, or another one, reads
  // blocks of them. Reading that fails is no error here: the caller reads the sample itself, and
  // finds its fault.
  Held Hold(int64_t batch, absl::Span<const SampleRef> samples) ABSL_LOCKS_EXCLUDED(mu_);

  // Asks the kernel to read the blocks of these samples of a later batch, once in each epoch. Asks
  // for no more bytes of a window than there is memory for. Does not block.
  void WillHold(int64_t batch, absl::Span<const SampleRef> samples) ABSL_LOCKS_EXCLUDED(mu_);

  // All are at most `bytes_max`.
  int64_t held_bytes() const ABSL_LOCKS_EXCLUDED(mu_);    // of blocks
  int64_t memory_bytes() const ABSL_LOCKS_EXCLUDED(mu_);  // of blocks, and for the next ones
  int64_t asked_bytes() const ABSL_LOCKS_EXCLUDED(mu_);   // that the kernel reads for one window

 private:
  // A run of bytes of one file in the memory of a block.
  struct Part {
    int32_t file = 0;
    int64_t offset = 0;
    int64_t bytes = 0;
    int64_t at = 0;  // in the memory
  };
  // Memory that this object frees. `data` is null until it is used.
  struct Memory {
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  // The facts of a block by its number.
  struct Entry {
    Block* block = nullptr;  // null: it is not in memory
    int64_t epoch = -1;      // the last one in which it was used
    int64_t asked = -1;      // the last epoch for which the kernel was asked
    int64_t first_use = 0;   // the batch
  };
  // A block for which the kernel was asked.
  struct Asked {
    int64_t batch = 0;
    int64_t bytes = 0;
  };

  int64_t SamplesOf(int64_t number) const;
  std::vector<Part> PartsOf(int64_t number) const;
  static int64_t BytesOf(absl::Span<const Part> parts);
  Block* Admit(int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<Memory> TakeMemory(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Destroys the block. Requires: nothing holds it.
  void Remove(const Block& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns whether a block that was used in batch `a` may be in use in batch `b`.
  bool AreNear(int64_t a, int64_t b) const;
  // Reads the blocks that are not read yet, and awaits those that other threads read.
  void Load(absl::Span<Block* const> blocks) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Read(Block& block) const;
  void Release(absl::Span<Block* const> blocks) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  mutable absl::Mutex mu_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mu_);  // by number
  std::vector<std::unique_ptr<Block>> blocks_ ABSL_GUARDED_BY(mu_);
  int64_t batch_ ABSL_GUARDED_BY(mu_) = 0;  // the latest one
  int64_t held_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Memory> spare_ ABSL_GUARDED_BY(mu_);  // for the next blocks
  int64_t spare_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Asked> asked_ ABSL_GUARDED_BY(mu_);
  int64_t asked_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of asked_
};

}  // namespace muster
