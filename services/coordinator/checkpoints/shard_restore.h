// Reads one shard's part of a checkpoint, slice by slice.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Returns chunk by chunk, slot by slot (0: values), in slices of at most limits::kSliceBytesMax.
// The first slice carries the update state. Not thread-safe.
class ShardRestore {
 public:
  // Returns INVALID_ARGUMENT (reason "CHECKPOINT_MISMATCH") if the checkpoint is of another model.
  // Returns DATA_LOSS (reason "CHECKPOINT_DAMAGED") if it was intact when the plan was made and is
  // not any more. Returns UNAVAILABLE (reason "STORAGE_FAILED") if this process lacks descriptors;
  // try again.
  static absl::StatusOr<std::unique_ptr<ShardRestore>> Open(std::shared_ptr<const v1::JobPlan> plan,
                                                            const std::string& directory,
                                                            int shard);

  // Returns the next slice; nullopt after the last one. Returns the same errors as Open().
  absl::StatusOr<std::optional<v1::ShardSlice>> Next();

 private:
  ShardRestore(std::shared_ptr<const v1::JobPlan> plan,
               std::unique_ptr<const CheckpointReader> reader, int shard);
  void SkipForeignChunks();

  const std::shared_ptr<const v1::JobPlan> plan_;
  const std::unique_ptr<const CheckpointReader> reader_;
  const int shard_;
  const std::vector<std::string> slots_;  // "" for values, then the optimizer's slots
  int chunk_ = 0;
  int slot_ = 0;
  int64_t offset_ = 0;  // in elements, within the chunk
  bool state_sent_ = false;
};

}  // namespace muster
