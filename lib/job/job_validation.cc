#include "lib/job/job_validation.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "lib/job/data_check.h"
#include "lib/job/field_checks.h"
#include "lib/job/labels.h"
#include "lib/job/model_check.h"
#include "lib/job/resource_name.h"
#include "lib/job/spec_duration.h"
#include "lib/job/spec_names.h"
#include "lib/job/sync_check.h"
#include "lib/job/training_check.h"
#include "lib/job/unknown_fields.h"
#include "lib/limits/limits.h"
#include "lib/plan/sum_tree.h"

namespace muster {
namespace {

constexpr int kPriorityMax = 1000;
constexpr int kMaxRestartsMax = 1000;
constexpr int kKeepBestMax = 1000;
constexpr int64_t kPartsOfRun = 10;  // a checkpoint after each tenth of the run is frequent enough
constexpr absl::Duration kBackoffMax = absl::Hours(1);
constexpr absl::Duration kTimeMax = absl::Hours(24 * 1000);
constexpr int64_t kChunkBytesMultiple = 64;  // chunks start on cache lines

void CheckName(const v1::JobSpec& spec, FieldChecks& faults) {
  const std::string& name = spec.name();
  if (name.empty()) {
    faults.Add("name", "required: the job's name, for example char-gpt");
  } else if (!IsValidName(name)) {
    faults.Add("name",
               absl::StrCat("must be lower-case letters, digits and '-', beginning and ending "
                            "with a letter or digit, at most ",
                            limits::kNameBytesMax, " characters (is \"",
                            name.substr(0, 2 * limits::kNameBytesMax), "\", ", name.size(),
                            " characters)"));
  }
}

// Checks resources.ps_replication. A replica can take its shard's place only if all chunks are
// within one step of each other.
void CheckReplication(const v1::JobSpec& spec, FieldChecks& faults) {
  constexpr char kField[] = "resources.ps_replication";
  const int replication = spec.resources().ps_replication();
  if (!faults.InRange<int64_t>(kField, replication, 0, 2) || replication < 2) return;
  const auto* const mode = v1::SyncMode_descriptor()->FindValueByNumber(spec.sync().mode());
  if (mode == nullptr) return;  // CheckSync() reports an unknown mode
  if (mode->number() > v1::BSP) {
    faults.Add(kField,
               absl::StrCat("2 works with sync.mode bsp only (is ", EnumName(*mode),
                            "): in the others shards are not at one version, or there are no ps"));
  } else if (spec.sync().backup_workers() > 0) {
    faults.Add(kField,
               absl::StrCat("2 does not work with sync.backup_workers (is ",
                            spec.sync().backup_workers(), "): shards are not at one version then"));
  } else if (spec.resources().ps() < 2) {
    faults.Add(kField, absl::StrCat("2 needs resources.ps of at least 2 (is ",
                                    std::max(1, spec.resources().ps()),
                                    "): every parameter is held by two of them"));
  }
}

// Checks resources.tensor_parallel. CheckSpec() checks that the model can be divided.
void CheckTensorParallel(const v1::JobSpec& spec, FieldChecks& faults) {
  constexpr char kField[] = "resources.tensor_parallel";
  const int degree = spec.resources().tensor_parallel();
  if (!faults.InRange<int64_t>(kField, degree, 0, limits::kTensorParallelMax)) return;
  if (degree > 1 && spec.model().has_external()) {
    faults.Add(kField,
               "not with model.external: the program divides its model among its GPUs itself; "
               "remove it");
  }
}

void CheckResources(const v1::JobSpec& spec, FieldChecks& faults) {
  const v1::ResourceSpec& resources = spec.resources();
  const v1::WorkerCount& workers = resources.workers();
  faults.InRange<int64_t>("resources.workers.min", workers.min(), 0, limits::kWorkersMax);
  if (faults.InRange<int64_t>("resources.workers.max", workers.max(), 0, limits::kWorkersMax) &&
      workers.max() != 0 && workers.max() < workers.min()) {
    faults.Add("resources.workers.max",
               absl::StrCat("must be at least min = ", workers.min(), " (is ", workers.max(), ")"));
  }
  CheckTensorParallel(spec, faults);
  CheckReplication(spec, faults);
  if (spec.sync().mode() == v1::ALLREDUCE && resources.ps() != 0) {
    faults.Add("resources.ps", absl::StrCat("sync.mode allreduce has none (is ", resources.ps(),
                                            "): workers own the parameters; remove it"));
    return;
  }
  faults.InRange<int64_t>("resources.ps", resources.ps(), 0, limits::kPsMax);
}

// Refuses retention rules that would never keep a checkpoint. Otherwise the user would notice only
// after checkpoints were deleted.
void CheckRetention(const v1::JobSpec& spec, FieldChecks& faults) {
  const v1::CheckpointSpec& checkpoint = spec.checkpoint();
  const int64_t written = checkpoint.every_steps(), kept = checkpoint.keep_every_steps();
  faults.AtLeast("checkpoint.keep_every_steps", kept, 0, "0 keeps none for that");
  if (kept > 0 && (written < 1 || kept % written != 0)) {
    faults.Add("checkpoint.keep_every_steps",
               absl::StrCat("must be a multiple of checkpoint.every_steps = ", written, " (is ",
                            kept, "): no others are written"));
  }
  faults.InRange<int64_t>("checkpoint.keep_best", checkpoint.keep_best(), 0, kKeepBestMax);
  const int64_t evaluated = spec.training().evaluate_every_steps();
  if (spec.model().has_external()) return;  // the program decides which steps it evaluates
  if (checkpoint.keep_best() > 0 && (evaluated < 1 || written < 1 || written % evaluated != 0)) {
    faults.Add(
        "checkpoint.keep_best",
        absl::StrCat("needs evaluations of what is written: checkpoint.every_steps = ", written,
                     " must be a multiple of training.evaluate_every_steps = ", evaluated));
  }
}

void CheckCheckpoint(const v1::JobSpec& spec, FieldChecks& faults) {
  const v1::CheckpointSpec& checkpoint = spec.checkpoint();
  faults.AtLeast("checkpoint.every_steps", checkpoint.every_steps(), 0,
                 "0 writes one after each tenth of the steps");
  faults.Time("checkpoint.every", checkpoint.every(), absl::ZeroDuration(), kTimeMax);
  const int64_t every = spec.sync().every();
  if (spec.sync().mode() == v1::LOCAL_SGD && every > 0 && checkpoint.every_steps() % every != 0) {
    faults.Add("checkpoint.every_steps",
               absl::StrCat("must be a multiple of sync.every = ", every, " (is ",
                            checkpoint.every_steps(), "): workers agree only then; try ",
                            (checkpoint.every_steps() / every + 1) * every));
  }
  faults.AtLeast("checkpoint.keep_last", checkpoint.keep_last(), 0, "0 keeps all");
  CheckRetention(spec, faults);
  const std::string& from = checkpoint.resume_from();
  if (from.empty()) return;
  faults.Path("checkpoint.resume_from", from, "");
  if (!absl::StrContains(from, '/') && from[0] != '.' && !ParseCheckpointRef(from)) {
    faults.Add(
        "checkpoint.resume_from",
        absl::StrCat("must be a job id (char-gpt-7), job@step (char-gpt-7@1000) or a checkpoint "
                     "directory (is \"",
                     from.substr(0, 2 * limits::kNameBytesMax), "\")"));
  }
}

void CheckRestart(const v1::JobSpec& spec, FieldChecks& faults) {
  faults.InRange<int64_t>("restart.max_restarts", spec.restart().max_restarts(), 0, kMaxRestartsMax,
                          "0: the first failure of a member ends the job");
  faults.Time("restart.backoff", spec.restart().backoff(), absl::ZeroDuration(), kBackoffMax);
}

void CheckTimes(const v1::JobSpec& spec, FieldChecks& faults) {
  if (spec.has_active_deadline()) {
    faults.Time("active_deadline", spec.active_deadline(), absl::Seconds(1), kTimeMax);
  }
  if (spec.has_start_timeout()) {
    faults.Time("start_timeout", spec.start_timeout(), absl::Seconds(1), kTimeMax);
  }
  faults.Time("ttl_after_finished", spec.ttl_after_finished(), absl::ZeroDuration(), kTimeMax);
}

void CheckOnNonFinite(const v1::JobSpec& spec, FieldChecks& faults) {
  if (v1::OnNonFinite_IsValid(spec.on_non_finite())) return;
  faults.Add("on_non_finite", absl::StrCat("must be fail, rollback or ignore (is number ",
                                           spec.on_non_finite(), ")"));
}

void CheckChunkBytes(const v1::JobSpec& spec, FieldChecks& faults) {
  const int64_t bytes = spec.chunk_bytes();
  if (bytes == 0) return;
  if (faults.InRange("chunk_bytes", bytes, limits::kChunkBytesMin, limits::kChunkBytesMax) &&
      bytes % kChunkBytesMultiple != 0) {
    faults.Add("chunk_bytes", absl::StrCat("must be a multiple of ", kChunkBytesMultiple, " (is ",
                                           bytes, "); try ", bytes - bytes % kChunkBytesMultiple));
  }
}

// Warns if the job can lose more of its training than the default of checkpoint.every allows.
void WarnOfLostSteps(const v1::JobSpec& spec, std::vector<std::string>& warnings) {
  const v1::CheckpointSpec& checkpoint = spec.checkpoint();
  const absl::Duration every =
      checkpoint.has_every() ? SpecDuration(checkpoint.every()) : kCheckpointEveryDefault;
  const int64_t steps = spec.training().steps();
  std::string lost;
  if (every == absl::ZeroDuration() && checkpoint.every_steps() == 0) {
    lost = "all its steps";
  } else if (every == absl::ZeroDuration() && steps > 0 &&
             checkpoint.every_steps() > steps / kPartsOfRun) {
    lost = absl::StrCat(checkpoint.every_steps(), " of its ", steps, " steps");
  } else if (every > kCheckpointEveryDefault && checkpoint.every_steps() == 0) {
    lost = absl::StrCat(absl::FormatDuration(every), " of training");
  }
  if (lost.empty()) return;
  warnings.push_back(absl::StrCat(
      "checkpoint.every: without a checkpoint in between, the loss of a ps or of ",
      "the whole cluster costs the job up to ", lost, "; remove the field for a checkpoint every ",
      absl::FormatDuration(kCheckpointEveryDefault)));
}

// Warns if the job's largest number of workers is no faster than a smaller one.
void WarnOfUselessWorkers(const v1::JobSpec& spec, std::vector<std::string>& warnings) {
  const v1::WorkerCount& workers = spec.resources().workers();
  const int64_t most = std::max({1, workers.min(), workers.max()});
  if (workers.logical() == 0 || most == 1) return;
  const int64_t largest = LargestNode(workers.logical(), most);
  const std::vector<UsefulWorkers> useful = UsefulWorkersOf(workers.logical());
  const auto best = std::ranges::find(useful, largest, &UsefulWorkers::largest_node);
  if (best->workers == most) return;
  const auto number = [](std::string* text, const UsefulWorkers& each) {
    absl::StrAppend(text, each.workers);
  };
  warnings.push_back(
      absl::StrCat("resources.workers.max: ", most, " workers are no faster than ", best->workers,
                   " with ", workers.logical(), " logical workers; useful numbers are ",
                   absl::StrJoin(useful, ", ", number), "; set ",
                   workers.min() > best->workers ? "min and max" : "max", " to ", best->workers));
}

}  // namespace

std::vector<FieldFault> ValidateJobSpec(const v1::JobSpec& spec) {
  FieldChecks faults;
  if (const auto bytes = static_cast<int64_t>(spec.ByteSizeLong()); bytes > limits::kSpecBytesMax) {
    faults.Add("spec", absl::StrCat("must be at most ", limits::kSpecBytesMax, " bytes (is ", bytes,
                                    "): data and models are named by path"));
    return std::move(faults).Take();
  }
  CheckUnknownFields(spec, faults);
  CheckName(spec, faults);
  CheckModel(spec, faults);
  CheckData(spec, faults);
  CheckTraining(spec, faults);
  CheckSync(spec, faults);
  CheckResources(spec, faults);
  CheckLogicalWorkers(spec, faults);
  CheckCheckpoint(spec, faults);
  CheckRestart(spec, faults);
  CheckTimes(spec, faults);
  CheckOnNonFinite(spec, faults);
  faults.InRange<int64_t>("priority", spec.priority(), -kPriorityMax, kPriorityMax);
  CheckChunkBytes(spec, faults);
  CheckLabels("labels", spec.labels(), faults);
  CheckAnnotations("annotations", spec.annotations(), faults);
  return std::move(faults).Take();
}

std::vector<std::string> WarningsOf(const v1::JobSpec& spec) {
  std::vector<std::string> warnings;
  WarnOfUselessWorkers(spec, warnings);
  WarnOfLostSteps(spec, warnings);
  return warnings;
}

}  // namespace muster
