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

// Lays out `step-<S>.tmp-<id>.<process>/{model,optimizer}-0000i-of-0000n.safetensors` below a job's
// checkpoint folder, and takes slices at their final offsets. Commit() syncs every file, writes and
// syncs manifest.json, renames the folder to `step-<S>`, and syncs the parent.
//
// The checkpoint does not exist before the rename. The destructor of an uncommitted writer removes
// its folder. WriteSlice() and SliceWritten() are thread-safe; the other functions are not.
class CheckpointWriter {
 public:
  struct Options {
    std::string directory;  // the job's checkpoint folder; created if missing
    std::string id;         // unique suffix of the temporary folder
    int64_t step = 0;
    int64_t total_steps = 0;
    std::optional<v1::UpdateState> update_state;
    std::string data_fingerprint = {};  // as in Manifest
    int64_t file_bytes_max = int64_t{5} << 30;
    bool shared = false;  // other processes write to the files too, and call SliceWritten()
  };
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(const v1::JobPlan& plan,
                                                                  const Options& options);
  virtual ~CheckpointWriter() = default;

  // Writes a slice. `slot` 0 means values, 1 and above optimizer slots. Returns INVALID_ARGUMENT
  // for a chunk, slot or range that the plan does not have.
  virtual absl::Status WriteSlice(int chunk, int slot, int64_t offset_bytes,
                                  absl::Span<const std::byte> data) = 0;

  // Only for a shared writer: another process has written and synced these bytes, which had this
  // CRC-32C in its memory. Otherwise like WriteSlice().
  virtual absl::Status SliceWritten(int chunk, int slot, int64_t offset_bytes, int64_t bytes,
                                    uint32_t crc32c) = 0;

  // The places that other processes write to: the temporary folder, its files, and the place of a
  // chunk in them. The slot must be one of the chunk's.
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

  // Commits the checkpoint. If step-<S> exists already (a repeated round), the new one replaces it.
  // A shared writer first reads back every file; no other process may have a file open. Returns
  // FAILED_PRECONDITION unless complete(). Returns DATA_LOSS (reason "DIRECT_MISMATCH") if a file
  // differs from the announced slices. Call it once, or again only after FAILED_PRECONDITION.
  virtual absl::StatusOr<v1::Checkpoint> Commit() = 0;
};

struct Pruned {
  std::vector<int64_t> steps;  // steps without a checkpoint now; complete even after an error
  absl::Status status;         // the first error
};

// Deletes old checkpoints and leftovers:
//
// - committed checkpoints, except the newest `keep_last` (0: keep all) and those of `needed` steps;
//   never the newest
// - temporary folders of dead writers
// - rests of damaged checkpoints that are older than the newest `keep_last` checkpoints
//
// An entry that cannot be removed does not stop the others, and is retried by the next call. May
// run several times in parallel.
Pruned PruneCheckpoints(const std::string& directory, int keep_last,
                        absl::Span<const int64_t> needed = {});

// Finishes replacements that a dead process left incomplete. If the file system cannot exchange
// folders, a commit that replaces a checkpoint needs two renames. A missing checkpoint gets its
// name back; a replaced one is removed. Call this when opening `directory` after a death;
// PruneCheckpoints() calls it too.
absl::Status FinishReplacements(const std::string& directory);

// Removes the checkpoint of `step` and its files. Returns NOT_FOUND if there is none.
absl::Status RemoveCheckpoint(const std::string& directory, int64_t step);

}  // namespace muster
