// Where everything of a checkpoint stands: names of folders and files, and which tensors a file
// holds.
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

// The step of such a name; nothing for any other name.
std::optional<int64_t> ParseStepFolderName(absl::string_view name);

// "step-00001000.tmp-<id>.<process>": `process` is this process's own, so that what dead ones left
// can be told apart.
std::string TemporaryFolderName(int64_t step, absl::string_view id);
bool IsTemporaryFolderName(absl::string_view name);
bool IsTemporaryFolderOfThisProcess(absl::string_view name);

// The id of what a commit has moved out of its way.
inline constexpr char kReplacedId[] = "replaced";

struct TemporaryFolder {
  int64_t step = 0;
  absl::string_view id;
};
// What such a name says, for as long as it lives; nothing for any other name.
std::optional<TemporaryFolder> ParseTemporaryFolderName(absl::string_view name);

// "step-00001000.damaged": what is left of a checkpoint that is damaged.
std::string DamagedFolderName(int64_t step);
// The step of such a name; nothing for any other name.
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

// Where a tensor stands; `file` is an index.
struct TensorPlace {
  int file = 0;
  int64_t offset = 0;  // from the start of the file
  int64_t bytes = 0;
};

struct CheckpointLayout {
  std::vector<FileLayout> files;                 // model files, then optimizer files
  std::vector<std::vector<TensorPlace>> places;  // [slot][parameter]; slot 0 is the values
};

// Tensors in the order of the parameters, as many in a file as fit `file_bytes_max` (header not
// counted) and at least one. INVALID_ARGUMENT for parameter names that are empty, repeated or
// reserved.
absl::StatusOr<CheckpointLayout> LayOutCheckpoint(
    const v1::Graph& graph, const std::vector<std::string>& slots,
    const absl::btree_map<std::string, std::string>& metadata, int64_t file_bytes_max);

// The API's view of a checkpoint of `job` that lies at `path`. Its files and size leave the
// manifest itself out.
v1::Checkpoint DescribeCheckpoint(const Manifest& manifest, absl::string_view job,
                                  const std::string& path);

}  // namespace muster
