// One checkpoint that is being written: the streams of all shards of a plan, until the last one
// commits it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/checkpoint/checkpoint_writer.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Open(), Write() and Commit(), and calls that come meanwhile, may block for the disk. The
// constructor does not read the plan. Thread-safe.
class CheckpointRound {
 public:
  struct Options {
    std::shared_ptr<const v1::JobPlan> plan;
    CheckpointWriter::Options writer;
    uint64_t snapshot = 0;  // 0: periodic or final
    absl::Time start;
  };
  explicit CheckpointRound(Options options) : options_(std::move(options)) {}

  const v1::JobPlan& plan() const { return *options_.plan; }
  int64_t step() const { return options_.writer.step; }
  uint64_t snapshot() const { return options_.snapshot; }
  absl::Time start() const { return options_.start; }

  // Creates the files when the first shard comes; later calls return the same result at once.
  absl::Status Open() ABSL_LOCKS_EXCLUDED(mu_);

  // Writes one slice of `shard`.
  // Returns INVALID_ARGUMENT (reason "INVALID_SLICE") if the chunk is not of this shard, or the
  // slice is too large or outside the chunk. Returns DATA_LOSS (reason "CHECKSUM_MISMATCH") for a
  // wrong checksum. These errors only affect the stream. Any other error is the disk's and ends the
  // round.
  absl::Status Write(int shard, const v1::ShardSlice& slice) ABSL_LOCKS_EXCLUDED(mu_);

  // Like Write(), for a slice that the shard's member has written itself. Requires: shared().
  absl::Status NoteWritten(int shard, const v1::WrittenSlice& slice) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns true if members may write the files themselves.
  bool shared() const { return options_.writer.shared; }
  // Returns where a shard's member writes, in messages within gRPC's size limit. `jobs_folder`
  // contains the round's files. Requires: Open() succeeded.
  std::vector<v1::WriteShardDirectResponse> LayoutFor(int shard,
                                                      const std::string& jobs_folder) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // An attempt to write a shard. If the shard was finished before, a member that writes the files
  // itself must not write again: the files may be committed at any moment.
  struct Attempt {
    int number = 0;
    bool finished_before = false;
  };
  // Begins a shard's stream. From here on only this attempt can finish the shard, unless it was
  // finished before.
  Attempt BeginShard(int shard) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends a shard's stream after `bytes`. Returns true for exactly one call, which completes the
  // round and must call Commit(). A shard without chunks need not come.
  // Returns INVALID_ARGUMENT (reason "INCOMPLETE_SHARD") if bytes are missing or too many.
  // Returns FAILED_PRECONDITION (reason "STALE_SNAPSHOT") if another attempt has begun since.
  absl::StatusOr<bool> FinishShard(int shard, int attempt, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<v1::Checkpoint> Commit() ABSL_LOCKS_EXCLUDED(mu_);

  // Sets the outcome of the round. Only the first call counts.
  void Resolve(absl::Status outcome) ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks for up to `timeout`. Returns the outcome, or nullopt if there is none yet.
  std::optional<absl::Status> AwaitOutcome(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the size of a shard's stream: values and optimizer slots of its chunks.
  int64_t ShardBytes(int shard) const;

 private:
  absl::Status CheckSlice(int shard, int chunk, int64_t bytes) const;
  std::shared_ptr<CheckpointWriter> writer() const ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  mutable absl::Mutex mu_;
  int64_t shards_with_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // known after Open()
  absl::Status opened_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<CheckpointWriter> writer_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<int, int> attempts_ ABSL_GUARDED_BY(mu_);  // the newest attempt, by shard
  absl::flat_hash_set<int> finished_ ABSL_GUARDED_BY(mu_);       // shards
  bool committing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mu_);
};

// One shard's WriteShard or WriteShardDirect stream into a round. Not thread-safe.
class ShardUpload {
 public:
  ShardUpload(std::shared_ptr<CheckpointRound> round, int shard)
      : round_(std::move(round)), shard_(shard), attempt_(round_->BeginShard(shard)) {}

  absl::Status Write(const v1::ShardSlice& slice);
  absl::Status NoteWritten(const v1::WrittenSlice& slice);
  // Returns true if an earlier attempt has finished the shard. Then this upload counts as complete,
  // too.
  bool TakeFromBefore();

  const std::shared_ptr<CheckpointRound>& round() const { return round_; }
  int shard() const { return shard_; }
  int attempt() const { return attempt_.number; }
  int64_t bytes() const { return bytes_; }

 private:
  const std::shared_ptr<CheckpointRound> round_;
  const int shard_;
  const CheckpointRound::Attempt attempt_;
  int64_t bytes_ = 0;
};

}  // namespace muster
