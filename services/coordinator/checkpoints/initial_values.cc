#include "services/coordinator/checkpoints/initial_values.h"

#include <glog/logging.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/checkpoint_writer.h"
#include "lib/checkpoint/folder.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr char kFolderPrefix[] = "model-";

// Returns the name of the folder that contains a path; "" if WriteInitialValues() cannot have made
// it.
std::string FolderOf(const std::string& path) {
  const std::string name = fs::path(path).parent_path().filename().string();
  return absl::StartsWith(name, kFolderPrefix) ? name : "";
}

absl::Status WriteChunk(const v1::JobPlan& plan, int id, const std::vector<float>& values,
                        CheckpointWriter& writer) {
  const v1::PlanChunk& chunk = plan.chunks(id);
  const absl::Span<const float> own =
      absl::MakeConstSpan(values).subspan(chunk.offset(), chunk.elements());
  const SlotRange slots = SlotsOfChunk(plan, chunk);
  const std::vector<float> zeros(slots.last > 0 ? chunk.elements() : 0);
  for (int slot = slots.first; slot <= slots.last; ++slot) {
    const absl::Span<const float> floats = slot == 0 ? own : absl::MakeConstSpan(zeros);
    RETURN_IF_ERROR(writer.WriteSlice(
        id, slot, /*offset_bytes=*/0,
        {reinterpret_cast<const std::byte*>(floats.data()), floats.size() * sizeof(float)}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> WriteInitialValues(const std::string& directory,
                                               const v1::JobSpec& spec, const Model& model) {
  if (absl::Status made = MakeFolders(directory); !made.ok()) {
    return WithReason(absl::UnavailableError(made.message()), "STATE_UNWRITABLE");
  }
  std::error_code error;
  std::string folder = fs::absolute(directory, error).string() + "/" + kFolderPrefix + "XXXXXX";
  if (error || mkdtemp(folder.data()) == nullptr) {
    return WithReason(absl::UnavailableError(absl::StrCat(
                          folder, ": ", error ? error.message() : std::strerror(errno))),
                      "STATE_UNWRITABLE");
  }
  absl::Cleanup remove = [&] { fs::remove_all(folder, error); };

  v1::JobPlan plan;
  plan.set_job(spec.name());
  *plan.mutable_spec() = spec;
  *plan.mutable_graph() = model.graph;
  plan.add_shards();  // one shard that has everything
  const std::vector<v1::PlanChunk> chunks =
      WithAveragedSlots(spec, CutIntoChunks(model.graph, spec.chunk_bytes()));
  plan.mutable_chunks()->Add(chunks.begin(), chunks.end());
  ASSIGN_OR_RETURN(const auto writer,
                   CheckpointWriter::Create(plan, {.directory = folder, .id = "initial"}));
  for (int id = 0; id < plan.chunks_size(); ++id) {
    RETURN_IF_ERROR(
        WriteChunk(plan, id, model.initial_values[plan.chunks(id).parameter()], *writer));
  }
  RETURN_IF_ERROR(writer->Commit().status());
  // Otherwise a power cut could remove the new folder's name.
  RETURN_IF_ERROR(SyncFolder(directory));
  std::move(remove).Cancel();
  return CheckpointPath(folder, /*step=*/0);
}

void RemoveInitialValues(const std::string& directory, const std::string& path) {
  std::error_code error;
  const std::string folder = FolderOf(path);
  if (!folder.empty()) fs::remove_all(fs::path(directory) / folder, error);
  if (error) LOG(ERROR) << directory << "/" << folder << " cannot be removed: " << error.message();
}

void RemoveOrphanedValues(const std::string& directory, absl::Span<const std::string> used) {
  absl::flat_hash_set<std::string> kept;
  for (const std::string& path : used) kept.insert(FolderOf(path));
  std::error_code error;
  std::vector<fs::path> orphans;
  for (const auto& folder : fs::directory_iterator(directory, error)) {
    const std::string name = folder.path().filename().string();
    if (absl::StartsWith(name, kFolderPrefix) && !kept.contains(name)) {
      orphans.push_back(folder.path());
    }
  }
  for (const fs::path& orphan : orphans) {
    LOG(INFO) << orphan.string() << " belongs to no job: removed";
    fs::remove_all(orphan, error);
    if (error) LOG(ERROR) << orphan.string() << " cannot be removed: " << error.message();
  }
}

}  // namespace muster
