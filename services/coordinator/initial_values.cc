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

absl::Status WriteChunk(const v1::PlanChunk& chunk, int id, int slots,
                        const std::vector<float>& values, CheckpointWriter& writer) {
  const absl::Span<const float> own =
      absl::MakeConstSpan(values).subspan(chunk.offset(), chunk.elements());
  const std::vector<float> zeros(slots > 0 ? chunk.elements() : 0);
  const auto bytes = [](absl::Span<const float> floats) {
    return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(floats.data()),
                               floats.size() * sizeof(float));
  };
  RETURN_IF_ERROR(writer.WriteSlice(id, /*slot=*/0, /*offset_bytes=*/0, bytes(own)));
  for (int slot = 1; slot <= slots; ++slot) {
    RETURN_IF_ERROR(writer.WriteSlice(id, slot, /*offset_bytes=*/0, bytes(zeros)));
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
  const std::vector<v1::PlanChunk> chunks = CutIntoChunks(model.graph, spec.chunk_bytes());
  plan.mutable_chunks()->Add(chunks.begin(), chunks.end());
  ASSIGN_OR_RETURN(const auto writer,
                   CheckpointWriter::Create(plan, {.directory = folder, .id = "initial"}));
  const auto slots = static_cast<int>(OptimizerSlotNames(spec.training().optimizer()).size());
  for (size_t id = 0; id < chunks.size(); ++id) {
    RETURN_IF_ERROR(WriteChunk(chunks[id], static_cast<int>(id), slots,
                               model.initial_values[chunks[id].parameter()], *writer));
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
