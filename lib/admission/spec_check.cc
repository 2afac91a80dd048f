#include "lib/admission/spec_check.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/folder.h"
#include "lib/checkpoint/sound_checkpoints.h"
#include "lib/data/source/dataset_check.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/model/model.h"
#include "lib/job/job_validation.h"
#include "lib/limits/limits.h"
#include "lib/plan/chunk_check.h"
#include "lib/plan/graph_size.h"
#include "lib/plan/parameter_group.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using Faults = std::vector<FieldFault>;

bool HasFaultUnder(const Faults& faults, absl::string_view field) {
  return std::ranges::any_of(faults, [&](const FieldFault& fault) {
    return fault.field == field || absl::StartsWith(fault.field, absl::StrCat(field, "."));
  });
}

// Returns the fault at the field that is wrong. If BuildModel rejects an argument, it names it in
// its message: "model 'gpt': argument 'heads' must be ...".
FieldFault ModelFault(const v1::ModelSpec& model, const absl::Status& status) {
  const std::string message(status.message());
  if (model.has_onnx()) return {"model.onnx", message};
  if (model.has_external()) return {"model.external.path", message};
  constexpr absl::string_view kMark = "argument '";
  const size_t mark = message.find(std::string(kMark));
  if (mark == std::string::npos) {
    return {absl::StartsWith(message, "unknown model") ? "model.zoo.name" : "model.zoo", message};
  }
  const size_t name = mark + kMark.size();
  return {absl::StrCat("model.zoo.args.", message.substr(name, message.find('\'', name) - name)),
          message};
}

// Returns the model with the path of an uploaded file. Returns NOT_FOUND if there is no such file.
absl::StatusOr<v1::ModelSpec> FindUpload(v1::ModelSpec model, const std::string& uploads) {
  const std::string name = model.external().path();
  if (!IsUploadedModel(name)) return model;
  if (uploads.empty()) {
    return absl::NotFoundError(absl::StrCat(
        name, ": an uploaded model is at the coordinator alone; only that can check the job"));
  }
  const std::string path =
      absl::StrCat(uploads, "/", absl::StripPrefix(name, absl::string_view(kUploadsPrefix)));
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat(
        name, ": no such upload; send the file again (UploadModel), it stays for a day"));
  }
  model.mutable_external()->set_path(path);
  return model;
}

// Returns a fault if the devices of a worker cannot divide the model.
std::optional<FieldFault> DivisionFault(const v1::JobSpec& spec, const v1::Graph& graph) {
  constexpr char kField[] = "resources.tensor_parallel";
  const int degree = spec.resources().tensor_parallel();
  if (degree <= 1 || degree > limits::kTensorParallelMax || spec.model().has_external()) {
    return std::nullopt;
  }
  const auto slices = ParameterSlices(graph, {.tensor_parallel = {.degree = degree}});
  if (slices.ok()) return std::nullopt;
  return FieldFault{kField, std::string(slices.status().message())};
}

std::optional<Model> CheckModel(const v1::JobSpec& spec, const SpecCheckContext& context,
                                Faults& faults) {
  if (HasFaultUnder(faults, "model")) return std::nullopt;
  const auto found = FindUpload(spec.model(), context.uploads);
  absl::StatusOr<Model> model =
      found.ok()
          ? LoadModel(*found, [&](const std::string& path) { return context.paths.Check(path); })
          : absl::StatusOr<Model>(found.status());
  if (!model.ok()) {
    faults.push_back(ModelFault(spec.model(), model.status()));
    return std::nullopt;
  }
  if (auto fault = GraphSizeFault(spec.model(), model->graph)) faults.push_back(*std::move(fault));
  if (auto fault = DivisionFault(spec, model->graph)) faults.push_back(*std::move(fault));
  if (HasFaultUnder(faults, "chunk_bytes")) return *std::move(model);
  if (auto fault = ChunkCountFault(spec, model->graph)) faults.push_back(*std::move(fault));
  return *std::move(model);
}

void CheckParameterGroups(const v1::TrainingSpec& training, const v1::Graph& graph,
                          Faults& faults) {
  const bool faulty = std::ranges::any_of(faults, [](const FieldFault& fault) {
    return absl::StartsWith(fault.field, "training.parameter_groups");
  });
  if (faulty) return;
  for (FieldFault& fault : ParameterGroupFaults(training, graph)) {
    faults.push_back(std::move(fault));
  }
}

bool ReadsFiles(const v1::JobSpec& spec) {
  return !spec.data().has_linear() && !spec.data().has_synthetic();
}

void CheckData(const v1::JobSpec& spec, const v1::Graph& graph, const SpecCheckContext& context,
               Faults& faults, std::vector<std::string>& warnings) {
  if (HasFaultUnder(faults, "data")) return;
  absl::StatusOr<std::shared_ptr<void>> slot = nullptr;
  if (ReadsFiles(spec)) slot = context.enter_data_check();
  if (!slot.ok()) {
    warnings.push_back(
        absl::StrCat("data: ", slot.status().message(), "; the workers alone will check the data"));
    return;
  }
  const auto samples = CheckDataset(spec.data(), graph, context.data_bytes_max);
  if (absl::IsUnavailable(samples.status())) {
    // The storage may be away for a moment, or from this machine alone. Workers try it again.
    warnings.push_back(
        absl::StrCat(samples.status().message(), "; the workers alone will check the data"));
  } else if (absl::IsResourceExhausted(samples.status())) {
    warnings.push_back(absl::StrCat(samples.status().message(),
                                    " while a job is submitted; the workers alone will check the "
                                    "data"));
  } else if (!samples.ok()) {
    Faults found = FaultsOf(samples.status());
    if (found.empty()) found.push_back({"data", std::string(samples.status().message())});
    std::ranges::move(found, std::back_inserter(faults));
  } else if (*samples && **samples < spec.data().batch_size()) {
    faults.push_back(
        {"data.batch_size", absl::StrCat("must be at most the ", **samples,
                                         " training samples (is ", spec.data().batch_size(), ")")});
  }
}

// Returns the checkpoint that a path may stand for by its form, .../J/checkpoints/step-S, after
// links are resolved. Returns nullopt for a path of another form.
std::optional<CheckpointRef> RefOfPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path directory = std::filesystem::canonical(path, error);
  if (error) return std::nullopt;
  const std::filesystem::path folder = directory.parent_path();
  const std::string name = directory.filename().string();
  absl::string_view digits = name;
  CheckpointRef reference{.job = folder.parent_path().filename().string(), .step = 0};
  const bool is_like = folder.filename() == "checkpoints" &&
                       absl::ConsumePrefix(&digits, "step-") &&
                       absl::SimpleAtoi(digits, &*reference.step);
  return is_like ? std::optional(std::move(reference)) : std::nullopt;
}

absl::StatusOr<SpecCheckContext::Found> FindCheckpoint(const std::string& resume_from,
                                                       const SpecCheckContext& context) {
  if (const auto reference = ParseCheckpointRef(resume_from)) {
    return context.find_checkpoint(*reference);
  }
  std::error_code error;
  const std::string directory = std::filesystem::absolute(resume_from, error).string();
  if (error) return absl::InvalidArgumentError(error.message());
  // A checkpoint of this coordinator is kept for the job only if the job refers to it by name.
  const auto own = RefOfPath(directory);
  if (own && context.find_checkpoint != nullptr) {
    auto found = context.find_checkpoint(*own);
    if (absl::IsDeadlineExceeded(found.status()))
      return found;  // it is unknown whether the checkpoint still exists
    if (found.ok() && std::filesystem::equivalent(found->directory, directory, error)) return found;
  }
  return SpecCheckContext::Found{directory, directory};
}

// Returns the checkpoint that `resume_from` names. If it names a job without a step and the job's
// last checkpoint is damaged, returns the newest sound one and adds a warning.
absl::StatusOr<SpecCheckContext::Found> FindSoundCheckpoint(const std::string& resume_from,
                                                            const SpecCheckContext& context,
                                                            std::vector<std::string>& warnings) {
  ASSIGN_OR_RETURN(SpecCheckContext::Found found, FindCheckpoint(resume_from, context));
  const absl::Status verified = VerifyCheckpoint(found.directory, context.caller_gone);
  if (!absl::IsDataLoss(verified)) {
    RETURN_IF_ERROR(verified);
    return found;
  }
  auto reference = ParseCheckpointRef(resume_from);
  if (reference) context.found_damaged();
  if (reference && !reference->step) {
    const std::string folder = ParentOf(found.directory);
    for (const int64_t step : SoundSteps(folder, /*except=*/-1, context.caller_gone)) {
      reference->step = step;
      auto earlier = context.find_checkpoint(*reference);
      if (!earlier.ok()) continue;
      warnings.push_back(absl::StrCat("checkpoint.resume_from: ", verified.message(), "; ",
                                      CheckpointIdOf(earlier->name), " is used instead"));
      return earlier;
    }
  }
  return absl::DataLossError(
      absl::StrCat(verified.message(), SoundOnesBeside(found.directory, context.caller_gone)));
}

void CheckResume(const v1::JobSpec& spec, const std::optional<Model>& model,
                 const SpecCheckContext& context, Faults& faults, SpecCheck& checked) {
  const std::string& resume_from = spec.checkpoint().resume_from();
  auto fault = [&](absl::string_view what) {
    faults.push_back({"checkpoint.resume_from", absl::StrCat("'", resume_from, "': ", what)});
  };
  const bool is_of_job = ParseCheckpointRef(resume_from).has_value();
  if (is_of_job && context.find_checkpoint == nullptr) return;
  const auto found = FindSoundCheckpoint(resume_from, context, checked.warnings);
  if (!found.ok()) return fault(found.status().message());
  const auto reader = CheckpointReader::Open(found->directory);
  if (!reader.ok()) return fault(reader.status().message());
  const Manifest& manifest = (*reader)->manifest();
  if (model) {
    if (auto fits = (*reader)->CheckFits(model->graph); !fits.ok()) return fault(fits.message());
  }
  const std::vector<std::string> slots = OptimizerSlotNames(spec.training().optimizer());
  if (!HasFaultUnder(faults, "training.optimizer") && slots != manifest.slots) {
    return fault(absl::StrCat("holds the optimizer state {", absl::StrJoin(manifest.slots, ", "),
                              "}, this job's optimizer keeps {", absl::StrJoin(slots, ", "), "}"));
  }
  const v1::TrainingSpec& training = spec.training();
  if (training.length_case() == v1::TrainingSpec::kSteps && training.steps() > 0 &&
      training.steps() <= manifest.step) {
    faults.push_back(
        {"training.steps", absl::StrCat("must be more than the checkpoint's step ", manifest.step,
                                        " (is ", training.steps(), ")")});
  }
  checked.restore = found->name;
  checked.first_step = manifest.step;
}

}  // namespace

absl::StatusOr<SpecCheck> CheckSpec(const v1::JobSpec& spec, const SpecCheckContext& context) {
  Faults faults = ValidateJobSpec(spec);
  // Opens no file before this check, so a caller cannot learn whether a forbidden file exists.
  if (std::vector<FieldFault> forbidden = context.paths.FaultsOf(spec); !forbidden.empty()) {
    std::ranges::move(forbidden, std::back_inserter(faults));
    return FaultsToStatus(faults, "INVALID_SPEC");
  }
  const absl::Status gone = absl::CancelledError("the caller is gone");
  SpecCheck checked;
  std::optional<Model> model = CheckModel(spec, context, faults);
  if (context.caller_gone()) return gone;
  if (model) CheckParameterGroups(spec.training(), model->graph, faults);
  if (model && context.data_visible && !spec.data().has_external()) {
    CheckData(spec, model->graph, context, faults, checked.warnings);
    if (context.caller_gone()) return gone;
  }
  if (!spec.checkpoint().resume_from().empty() &&
      !HasFaultUnder(faults, "checkpoint.resume_from")) {
    CheckResume(spec, model, context, faults, checked);
    if (context.caller_gone()) return gone;
  }
  if (!faults.empty()) return FaultsToStatus(faults, "INVALID_SPEC");
  std::ranges::move(WarningsOf(spec), std::back_inserter(checked.warnings));
  std::ranges::copy(model->warnings, std::back_inserter(checked.warnings));
  checked.model = *std::move(model);
  return checked;
}

}  // namespace muster
