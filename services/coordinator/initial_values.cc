#include "services/coordinator/initial_values.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/checkpoint_writer.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

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
  std::error_code error;
  fs::create_directories(directory, error);
  std::string folder = fs::absolute(directory, error).string() + "/model-XXXXXX";
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
  plan.add_shards();  // of everything
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
  std::move(remove).Cancel();
  return CheckpointPath(folder, /*step=*/0);
}

void RemoveInitialValues(const std::string& directory, const std::string& path) {
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  if (path.empty() || folder.parent_path() != fs::absolute(directory, error)) return;
  fs::remove_all(folder, error);
}

}  // namespace muster
