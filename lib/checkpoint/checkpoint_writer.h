// Writes one checkpoint: slices in any order from many threads, committed by one rename.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/checkpoint/manifest.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Lays out `step-<S>.tmp-<id>.<process>/{model,optimizer}-0000i-of-0000n.safetensors` under a job's
// checkpoint folder, takes slices at their final offsets, then Commit(): fsync of every file,
// manifest.json last, fsync, rename to `step-<S>`, fsync of the parent. Until the rename the
// checkpoint does not exist; the destructor of an uncommitted writer removes its folder. WriteSlice
// and SliceWritten are thread-safe; the rest is not.
class CheckpointWriter {
 public:
  struct Options {
    std::string directory;  // the job's checkpoint folder; made if missing
    std::string id;         // unique suffix of the temporary folder
    int64_t step = 0;
    int64_t total_steps = 0;
    std::optional<v1::UpdateState> update_state;
    int64_t file_bytes_max = int64_t{5} << 30;
    bool shared = false;  // others write to the files as well, and say so by SliceWritten()
  };
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(const v1::JobPlan& plan,
                                                                  const Options& options);
  virtual ~CheckpointWriter() = default;

  // `slot` 0: values, 1..: optimizer slots. INVALID_ARGUMENT for a chunk, slot or range that the
  // plan does not have.
  virtual absl::Status WriteSlice(int chunk, int slot, int64_t offset_bytes,
                                  absl::Span<const std::byte> data) = 0;

  // Of a shared writer: somebody else has written and synced these bytes, which had this CRC-32C in
  // his memory. As WriteSlice() otherwise.
  virtual absl::Status SliceWritten(int chunk, int slot, int64_t offset_bytes, int64_t bytes,
                                    uint32_t crc32c) = 0;

  // Where others find what they write: the temporary folder, its files, and where in them a chunk
  // stands. The slot is one of the chunk's.
  struct File {
    std::string name;
    int64_t bytes = 0;
  };
  struct Place {
    int file = 0;
    int64_t offset_bytes = 0;
  };
  virtual const std::string& temporary() const = 0;
  virtual std::vector<File> Files() const = 0;
  virtual Place PlaceOf(int chunk, int slot) const = 0;

  // True once every byte of every chunk and slot has been written at least once.
  virtual bool complete() const = 0;

  // FAILED_PRECONDITION unless complete(). A shared writer reads every file back first: DATA_LOSS
  // (reason "DIRECT_MISMATCH") when it is not what was said to be written. No other process may
  // have a file open. If step-<S> exists already (a repeated round), the new one replaces it.
  virtual absl::StatusOr<v1::Checkpoint> Commit() = 0;
};

// Deletes all but the newest `keep_last` committed checkpoints (0: keep all) and those of `needed`
// steps, temporary folders of dead writers, and what is left of damaged checkpoints that are older
// than all that are kept. Never deletes the newest. What cannot be removed keeps nothing else, and
// is tried again the next time. May run several times at once.
struct Pruned {
  std::vector<int64_t> steps;  // of which there is no checkpoint any more; complete, error or not
  absl::Status status;         // the first error
};
Pruned PruneCheckpoints(const std::string& directory, int keep_last,
                        absl::Span<const int64_t> needed = {});

// Where the file system cannot exchange folders a commit that replaces a checkpoint is two renames.
// What a process that died has left of one: a checkpoint that is missed has its name back, one that
// was replaced goes. For whoever opens `directory` after a death; PruneCheckpoints() does it too.
absl::Status FinishReplacements(const std::string& directory);

// Removes one checkpoint of `directory` and its files. NOT_FOUND: there is none of this step.
absl::Status RemoveCheckpoint(const std::string& directory, int64_t step);

}  // namespace muster
