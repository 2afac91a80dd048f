// The layout of a checkpoint: names of folders and files, and the tensors of each file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/checkpoint/manifest.h"
#include "lib/checkpoint/safetensors.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

inline constexpr char kManifestName[] = "manifest.json";

// "step-00001000"
std::string StepFolderName(int64_t step);

// Returns the step of such a name, or nullopt for any other name.
std::optional<int64_t> ParseStepFolderName(absl::string_view name);

// "step-00001000.tmp-<id>.<process>". `process` is unique to this process, so that leftovers of
// dead processes can be recognized.
std::string TemporaryFolderName(int64_t step, absl::string_view id);
bool IsTemporaryFolderName(absl::string_view name);
bool IsTemporaryFolderOfThisProcess(absl::string_view name);

// The id of a checkpoint that a commit has moved out of its way.
inline constexpr char kReplacedId[] = "replaced";

struct TemporaryFolder {
  int64_t step = 0;
  absl::string_view id;
};
// Parses such a name; nullopt for any other name. The result refers to `name`.
std::optional<TemporaryFolder> ParseTemporaryFolderName(absl::string_view name);

// "step-00001000.damaged": the rest of a damaged checkpoint.
std::string DamagedFolderName(int64_t step);
// Returns the step of such a name, or nullopt for any other name.
std::optional<int64_t> ParseDamagedFolderName(absl::string_view name);

// "model-00001-of-00002.safetensors" or "optimizer-...".
bool IsCheckpointFileName(absl::string_view name);

// "blocks.0.weight" for values (slot ""), "blocks.0.weight.m" for an optimizer slot.
std::string TensorName(absl::string_view parameter, absl::string_view slot);

struct FileLayout {
  std::string name;
  SafetensorsHeader header;  // offsets are set
  std::string header_bytes;
};

// The place of a tensor; `file` is an index into CheckpointLayout::files.
struct TensorPlace {
  int file = 0;
  int64_t offset = 0;  // from the start of the file
  int64_t bytes = 0;
};

struct CheckpointLayout {
  std::vector<FileLayout> files;                 // model files, then optimizer files
  std::vector<std::vector<TensorPlace>> places;  // [slot][parameter]; slot 0 is the values
};

// Lays out the tensors in the order of the parameters. A file gets as many tensors as fit into
// `file_bytes_max` (without the header), and at least one. Returns INVALID_ARGUMENT if there are no
// parameters, or for parameter names that are empty, repeated or reserved.
absl::StatusOr<CheckpointLayout> LayOutCheckpoint(
    const v1::Graph& graph, const std::vector<std::string>& slots,
    const absl::btree_map<std::string, std::string>& metadata, int64_t file_bytes_max);

// Returns the API's view of the checkpoint of `job` at `path`. Its files and size do not include
// the manifest.
v1::Checkpoint DescribeCheckpoint(const Manifest& manifest, absl::string_view job,
                                  const std::string& path);

}  // namespace muster
