#include "lib/checkpoint/checkpoint_layout.h"

#include <unistd.h>

#include <random>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "google/protobuf/util/time_util.h"
#include "lib/job/resource_name.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr char kTemporary[] = ".tmp-";
constexpr char kDamaged[] = ".damaged";

// Unique to every process. The random part is needed in containers, where every process id is 1.
// The process id distinguishes a forked child from its parent.
std::string ProcessToken() {
  static const uint64_t random = uint64_t{std::random_device()()} << 32 | std::random_device()();
  return absl::StrFormat("%d-%016x", getpid(), random);
}

// Consumes exactly five digits.
bool ConsumeNumber(absl::string_view& text) {
  if (text.size() < 5) return false;
  for (char c : text.substr(0, 5)) {
    if (!absl::ascii_isdigit(c)) return false;
  }
  text.remove_prefix(5);
  return true;
}

// Cuts the parameters' tensors of `slots` into files called <kind>-0000i-of-0000n.safetensors.
std::vector<FileLayout> PackFiles(const v1::Graph& graph, absl::string_view kind,
                                  const std::vector<std::string>& slots,
                                  const absl::btree_map<std::string, std::string>& metadata,
                                  int64_t file_bytes_max) {
  std::vector<FileLayout> files;
  int64_t bytes = 0;
  for (const v1::Parameter& parameter : graph.parameters()) {
    const int64_t tensor_bytes = ElementCount(parameter) * static_cast<int64_t>(sizeof(float));
    for (const std::string& slot : slots) {
      if (files.empty() || bytes + tensor_bytes > file_bytes_max) {
        files.emplace_back().header.metadata = metadata;
        bytes = 0;
      }
      bytes += tensor_bytes;
      files.back().header.tensors.push_back(
          {.name = TensorName(parameter.name(), slot),
           .shape = {parameter.shape().begin(), parameter.shape().end()}});
    }
  }
  for (size_t i = 0; i < files.size(); ++i) {
    files[i].name = absl::StrFormat("%s-%05d-of-%05d.safetensors", kind, i + 1, files.size());
    files[i].header_bytes = EncodeSafetensorsHeader(files[i].header);
  }
  return files;
}

absl::Status CheckNames(const v1::Graph& graph) {
  absl::flat_hash_set<absl::string_view> names;
  for (const v1::Parameter& parameter : graph.parameters()) {
    if (parameter.name().empty() || parameter.name() == "__metadata__" ||
        !names.insert(parameter.name()).second) {
      return absl::InvalidArgumentError(absl::StrCat("parameter '", parameter.name(),
                                                     "': its name is empty, reserved or repeated"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string StepFolderName(int64_t step) { return absl::StrFormat("step-%08d", step); }

std::optional<int64_t> ParseStepFolderName(absl::string_view name) {
  absl::string_view digits = name;
  int64_t step = 0;
  if (!absl::ConsumePrefix(&digits, "step-") || !absl::SimpleAtoi(digits, &step) || step < 0 ||
      StepFolderName(step) != name) {
    return std::nullopt;
  }
  return step;
}

std::string TemporaryFolderName(int64_t step, absl::string_view id) {
  return absl::StrCat(StepFolderName(step), kTemporary, id, ".", ProcessToken());
}

std::optional<TemporaryFolder> ParseTemporaryFolderName(absl::string_view name) {
  const size_t end = name.find(kTemporary);
  const std::optional<int64_t> step = ParseStepFolderName(name.substr(0, end));
  if (!step || end == name.npos) return std::nullopt;
  const absl::string_view id = name.substr(end + absl::string_view(kTemporary).size());
  return TemporaryFolder{.step = *step, .id = id.substr(0, id.rfind('.'))};
}

bool IsTemporaryFolderName(absl::string_view name) {
  return ParseTemporaryFolderName(name).has_value();
}

bool IsTemporaryFolderOfThisProcess(absl::string_view name) {
  return IsTemporaryFolderName(name) && absl::EndsWith(name, absl::StrCat(".", ProcessToken()));
}

std::string DamagedFolderName(int64_t step) { return absl::StrCat(StepFolderName(step), kDamaged); }

std::optional<int64_t> ParseDamagedFolderName(absl::string_view name) {
  return absl::ConsumeSuffix(&name, kDamaged) ? ParseStepFolderName(name) : std::nullopt;
}

bool IsCheckpointFileName(absl::string_view name) {
  return (absl::ConsumePrefix(&name, "model-") || absl::ConsumePrefix(&name, "optimizer-")) &&
         ConsumeNumber(name) && absl::ConsumePrefix(&name, "-of-") && ConsumeNumber(name) &&
         name == ".safetensors";
}

std::string TensorName(absl::string_view parameter, absl::string_view slot) {
  return slot.empty() ? std::string(parameter) : absl::StrCat(parameter, ".", slot);
}

absl::StatusOr<CheckpointLayout> LayOutCheckpoint(
    const v1::Graph& graph, const std::vector<std::string>& slots,
    const absl::btree_map<std::string, std::string>& metadata, int64_t file_bytes_max) {
  if (graph.parameters().empty()) return absl::InvalidArgumentError("the graph has no parameters");
  RETURN_IF_ERROR(CheckNames(graph));
  CheckpointLayout layout;
  layout.places.resize(1 + slots.size());
  auto place = [&](std::vector<FileLayout> files, size_t first_slot, size_t slot_count) {
    size_t tensor = 0;
    for (FileLayout& file : files) {
      for (const TensorEntry& entry : file.header.tensors) {
        layout.places[first_slot + tensor++ % slot_count].push_back(
            {static_cast<int>(layout.files.size()), entry.offset, entry.bytes});
      }
      layout.files.push_back(std::move(file));
    }
  };
  place(PackFiles(graph, "model", {""}, metadata, file_bytes_max), 0, 1);
  if (!slots.empty())
    place(PackFiles(graph, "optimizer", slots, metadata, file_bytes_max), 1, slots.size());
  return layout;
}

v1::Checkpoint DescribeCheckpoint(const Manifest& manifest, absl::string_view job,
                                  const std::string& path) {
  v1::Checkpoint checkpoint;
  checkpoint.set_name(CheckpointName(job, manifest.step));
  checkpoint.set_job(std::string(job));
  checkpoint.set_step(manifest.step);
  *checkpoint.mutable_create_time() =
      google::protobuf::util::TimeUtil::MillisecondsToTimestamp(manifest.create_time_unix_millis);
  checkpoint.set_directory(path);
  for (const v1::CheckpointFile& file : manifest.files) {
    *checkpoint.add_files() = file;
    checkpoint.set_size_bytes(checkpoint.size_bytes() + file.size_bytes());
  }
  return checkpoint;
}

}  // namespace muster
