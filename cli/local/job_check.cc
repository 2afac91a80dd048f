#include "cli/local/job_check.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/admission/spec_check.h"
#include "lib/engine/backends/backends.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/job/job_validation.h"
#include "lib/plan/parameter_table.h"
#include "lib/plan/sum_tree.h"
#include "lib/status/status.h"
#include "lib/text/byte_size.h"

namespace muster::cli {
namespace {

// The largest job file. ParseJobFile() has the same limit; it is checked here as well, so that a
// huge file is not read at all.
constexpr int64_t kFileBytesMax = 1 << 20;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns a warning if the memory left is too little for a CPU worker. Plans the samples that it
// computes at once: those of a logical worker, or of a worker if there are as many as possible. A
// job without logical workers has larger shares on fewer workers.
absl::StatusOr<std::string> MemoryWarning(v1::JobSpec spec, const v1::Graph& graph) {
  FillDefaults(spec);
  const v1::TrainingSpec& training = spec.training();
  const int degree = spec.resources().tensor_parallel();
  ASSIGN_OR_RETURN(const v1::Graph lowered,
                   TrainingGraph(graph, {.precision = training.precision(),
                                         .recompute = training.recompute(),
                                         .only_loss = true,
                                         .tensor_parallel = {.degree = degree}}));
  ASSIGN_OR_RETURN(const auto device, CreateDevice("cpu", /*threads=*/1));
  const v1::WorkerCount& workers = spec.resources().workers();
  const int64_t shares = std::max<int64_t>({1, workers.min(), workers.max(), workers.logical()});
  const int64_t samples = CeilDiv(spec.data().batch_size(), shares);
  const int64_t limit = training.micro_batch_size();
  const int64_t at_once = limit == 0 ? samples : std::min(samples, limit);
  ASSIGN_OR_RETURN(const Executor::MemoryNeed need,
                   MemoryNeedOf(lowered, {.batch = at_once, .device = device.get()}));
  // A worker adds up the most logical workers if the job has the fewest workers. Their sums take
  // floor(log2) gradients.
  const int64_t least = std::max(1, workers.min());
  const int64_t leaves = workers.logical() > 0 ? LargestNode(workers.logical(), least) : 1;
  int64_t sum_bytes = 0;
  for (const v1::Parameter& parameter : graph.parameters()) {
    sum_bytes += ElementCount(parameter) * static_cast<int64_t>(sizeof(float));
  }
  sum_bytes *= std::bit_width(static_cast<uint64_t>(leaves)) - 1;
  // Each rank has its part of the values, and activations of its own.
  const int64_t activations = degree * need.arena_bytes;
  const int64_t bytes = activations + degree * need.parameter_bytes + sum_bytes;
  const int64_t available = device->available_bytes();
  if (bytes <= available) return "";
  return absl::StrCat("data.batch_size: a worker on the CPU needs ", FormatBytes(bytes), " (",
                      FormatBytes(activations), " of activations for ", at_once,
                      " samples at a time), and this machine has ", FormatBytes(available),
                      " left. ",
                      workers.logical() > 0 ? "Raise resources.workers.logical, set "
                                            : "Set training.micro_batch_size or ",
                      "training.recompute, use a smaller batch, or use more workers on other "
                      "machines");
}

}  // namespace

absl::StatusOr<std::string> ReadJobFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", error ? error.message() : "not a file"));
  }
  if (std::filesystem::file_size(path, error) > kFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a job file may have at most ", kFileBytesMax, " bytes"));
  }
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot read"));
  return text.str();
}

absl::StatusOr<JobOverrides> ParseOverrides(const std::vector<std::string>& settings) {
  JobOverrides overrides;
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--set ", setting, ": expects FIELD=VALUE, for example --set training.steps=500"));
    }
    overrides.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
  }
  return overrides;
}

absl::StatusOr<CheckedJob> CheckJobFile(const std::string& text, const std::string& file,
                                        const JobOverrides& overrides) {
  CheckedJob checked;
  ASSIGN_OR_RETURN(checked.spec, ParseJobFile(text, file, overrides));
  absl::StatusOr<SpecCheck> found = CheckSpec(checked.spec, {});
  if (!found.ok()) return LocateFaults(found.status(), text, file, overrides);
  checked.warnings = std::move(found->warnings);
  if (checked.spec.model().has_external()) return checked;  // no worker computes the model
  ASSIGN_OR_RETURN(checked.memory_warning, MemoryWarning(checked.spec, found->model.graph));
  return checked;
}

}  // namespace muster::cli
