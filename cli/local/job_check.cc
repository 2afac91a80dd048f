#include "cli/local/job_check.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/data/dataset.h"
#include "lib/graph/model/model.h"
#include "lib/job/job_validation.h"
#include "lib/plan/chunk_check.h"
#include "lib/plan/graph_size.h"
#include "lib/plan/parameter_group.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

constexpr int64_t kFileBytesMax = 1 << 20;  // ParseJobFile's own bound; here so that it is not read

bool HasFaultUnder(const std::vector<FieldFault>& faults, absl::string_view field) {
  return std::any_of(faults.begin(), faults.end(), [&](const FieldFault& fault) {
    return fault.field == field || absl::StartsWith(fault.field, absl::StrCat(field, "."));
  });
}

// BuildModel names the argument in its message: "model 'gpt': argument 'heads' must be ...".
FieldFault ModelFault(const v1::ModelSpec& model, const absl::Status& status) {
  const std::string message(status.message());
  if (model.has_onnx()) return {"model.onnx", message};
  constexpr absl::string_view kMark = "argument '";
  const size_t mark = message.find(std::string(kMark));
  if (mark == std::string::npos) {
    return {absl::StartsWith(message, "unknown model") ? "model.zoo.name" : "model.zoo", message};
  }
  const size_t name = mark + kMark.size();
  return {absl::StrCat("model.zoo.args.", message.substr(name, message.find('\'', name) - name)),
          message};
}

void CheckParameterGroups(const v1::JobSpec& spec, const v1::Graph& graph,
                          std::vector<FieldFault>& faults) {
  const bool are_faulty = std::any_of(faults.begin(), faults.end(), [](const FieldFault& fault) {
    return absl::StartsWith(fault.field, "training.parameter_groups");
  });
  if (are_faulty) return;
  for (FieldFault& fault : ParameterGroupFaults(spec.training(), graph)) {
    faults.push_back(std::move(fault));
  }
}

void CheckData(const v1::JobSpec& spec, const v1::Graph& graph, std::vector<FieldFault>& faults) {
  auto data = Dataset::Open(spec.data(), graph);
  if (!data.ok()) {
    std::ranges::move(FaultsOf(data.status()), std::back_inserter(faults));
  } else if (spec.data().batch_size() > (*data)->samples()) {
    faults.push_back(
        {"data.batch_size", absl::StrCat("must be at most the ", (*data)->samples(),
                                         " training samples (is ", spec.data().batch_size(), ")")});
  }
}

void CheckResume(const v1::JobSpec& spec, const v1::Graph& graph, std::vector<FieldFault>& faults) {
  const std::string& from = spec.checkpoint().resume_from();
  if (!absl::StartsWith(from, "/") && !absl::StartsWith(from, ".")) return;  // a job's
  auto checkpoint = CheckpointReader::Open(from);
  const absl::Status status =
      checkpoint.ok() ? (*checkpoint)->CheckFits(graph) : checkpoint.status();
  if (!status.ok()) faults.push_back({"checkpoint.resume_from", std::string(status.message())});
}

std::vector<FieldFault> FaultsOfSpec(const v1::JobSpec& spec, std::vector<std::string>& warnings) {
  std::vector<FieldFault> faults = ValidateJobSpec(spec);
  if (HasFaultUnder(faults, "model")) return faults;
  auto model = LoadModel(spec.model());
  if (!model.ok()) {
    faults.push_back(ModelFault(spec.model(), model.status()));
    return faults;
  }
  warnings = WarningsOf(spec);
  std::ranges::move(model->warnings, std::back_inserter(warnings));
  const v1::Graph& graph = model->graph;
  if (auto fault = GraphSizeFault(spec.model(), graph)) faults.push_back(*std::move(fault));
  if (!HasFaultUnder(faults, "chunk_bytes")) {
    if (auto fault = ChunkCountFault(spec, graph)) faults.push_back(*std::move(fault));
  }
  CheckParameterGroups(spec, graph, faults);
  if (!HasFaultUnder(faults, "data")) CheckData(spec, graph, faults);
  if (!HasFaultUnder(faults, "checkpoint")) CheckResume(spec, graph, faults);
  return faults;
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
  const std::vector<FieldFault> faults = FaultsOfSpec(checked.spec, checked.warnings);
  if (!faults.empty()) return LocateFaults(FaultsToStatus(faults), text, file, overrides);
  return checked;
}

}  // namespace muster::cli
