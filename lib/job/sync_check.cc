#include "lib/job/sync_check.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "lib/job/spec_names.h"
#include "lib/limits/limits.h"

namespace muster {
namespace {

constexpr int kStalenessMax = 1000;
constexpr int64_t kLocalStepsMax = 1'000'000;
constexpr double kRatioMax = 0.5;  // a sent element takes 4 bytes, as much as an element in fp32
constexpr int kRankMax = 64;

absl::string_view ModeName(v1::SyncMode mode) {
  switch (mode) {
    case v1::SSP:
      return "ssp";
    case v1::ASP:
      return "asp";
    case v1::LOCAL_SGD:
      return "local_sgd";
    case v1::ALLREDUCE:
      return "allreduce";
    default:
      return "bsp";
  }
}

class SyncCheck {
 public:
  SyncCheck(const v1::JobSpec& spec, FieldChecks& faults) : spec_(spec), faults_(faults) {}

  void Run() {
    const v1::SyncSpec& sync = spec_.sync();
    const v1::SyncMode mode = sync.mode();
    if (!v1::SyncMode_IsValid(mode)) {
      faults_.Add("sync.mode", absl::StrCat("unknown mode ", mode,
                                            "; known: bsp, ssp, asp, local_sgd, allreduce"));
      return;
    }
    const bool is_bsp = mode == v1::BSP || mode == v1::SYNC_MODE_UNSPECIFIED;
    if (mode == v1::SSP) {
      faults_.InRange("sync.staleness", sync.staleness(), 0, kStalenessMax, "1 is the default");
    } else if (sync.staleness() != 0) {
      OnlyWith("sync.staleness", "ssp");
    }
    if (is_bsp) {
      BackupWorkers(sync.backup_workers());
    } else if (sync.backup_workers() != 0) {
      OnlyWith("sync.backup_workers", "bsp");
    }
    if (mode == v1::LOCAL_SGD) {
      faults_.InRange<int64_t>("sync.every", sync.every(), 2, kLocalStepsMax,
                               "steps between two averagings, for example 16");
    } else if (sync.every() != 0) {
      OnlyWith("sync.every", "local_sgd");
    }
    if (sync.staleness_aware() && mode != v1::SSP && mode != v1::ASP) {
      OnlyWith("sync.staleness_aware", "asp or ssp");
    }
    Compression(sync);
    Values(sync);
  }

 private:
  // Adds a fault for a field of sync that is set although its mode does not read it.
  void OnlyWith(std::string field, absl::string_view modes) {
    faults_.Add(std::move(field), absl::StrCat("only with sync.mode ", modes, " (is ",
                                               ModeName(spec_.sync().mode()), "); remove it"));
  }

  void BackupWorkers(int backup_workers) {
    const int workers = std::max(1, spec_.resources().workers().min());
    if (backup_workers < 0 || backup_workers >= workers) {
      faults_.Add("sync.backup_workers",
                  absl::StrCat("must be at least 0 and less than resources.workers.min = ", workers,
                               " (is ", backup_workers, "): a step needs a worker's gradient"));
    }
  }

  void Compression(const v1::SyncSpec& sync) {
    if (!sync.has_compression()) return;
    const v1::Compression& compression = sync.compression();
    const v1::CompressionKind kind = compression.kind();
    if (kind == v1::COMPRESSION_KIND_UNSPECIFIED || !v1::CompressionKind_IsValid(kind)) {
      faults_.Add(
          "sync.compression",
          "required: one of none, fp16, bf16, int8, topk, onebit, powersgd; for example {kind: "
          "topk, ratio: 0.01}");
      return;
    }
    if (kind != v1::COMPRESSION_NONE) NeedsPushesToPs("sync.compression");
    if (kind == v1::COMPRESSION_TOPK) {
      if (compression.ratio() != 0 &&
          !(compression.ratio() > 0 && compression.ratio() <= kRatioMax)) {
        faults_.Add("sync.compression.ratio",
                    absl::StrCat("must be greater than 0 and at most ", kRatioMax, " (is ",
                                 compression.ratio(), "); 0.01 is the default"));
      }
    } else if (compression.ratio() != 0) {
      faults_.Add("sync.compression.ratio", "only with kind: topk; remove it");
    }
    if (kind == v1::COMPRESSION_POWERSGD) {
      faults_.InRange("sync.compression.rank", compression.rank(), 0, kRankMax, "4 is the default");
    } else if (compression.rank() != 0) {
      faults_.Add("sync.compression.rank", "only with kind: powersgd; remove it");
    }
  }

  void Values(const v1::SyncSpec& sync) {
    if (!v1::WireValues_IsValid(sync.values())) {
      faults_.Add("sync.values",
                  absl::StrCat("unknown type ", sync.values(), "; known: fp32, fp16, bf16"));
    } else if (sync.values() != v1::WIRE_VALUES_UNSPECIFIED && sync.values() != v1::VALUES_FP32) {
      NeedsPushesToPs("sync.values");
    }
  }

  // Adds a fault if no gradients travel from workers to ps: then there is nothing that `field` can
  // make smaller.
  void NeedsPushesToPs(std::string field) {
    if (spec_.sync().mode() == v1::ALLREDUCE) {
      faults_.Add(
          std::move(field),
          "not with sync.mode allreduce: sums travel from worker to worker, and each would add an "
          "error that no worker could feed back; remove it or use bsp");
    } else if (spec_.sync().mode() == v1::LOCAL_SGD) {
      faults_.Add(
          std::move(field),
          "not with sync.mode local_sgd: it sends values to be averaged, not gradients; remove it, "
          "or make sync.every larger to send less");
    }
  }

  const v1::JobSpec& spec_;
  FieldChecks& faults_;
};

}  // namespace

void NeedsWholeSteps(const v1::JobSpec& spec, std::string field, absl::string_view because,
                     FieldChecks& faults) {
  const v1::SyncMode mode = spec.sync().mode();
  if (mode != v1::SSP && mode != v1::ASP && mode != v1::LOCAL_SGD) return;
  faults.Add(std::move(field), absl::StrCat("not with sync.mode ", ModeName(mode), ": ", because,
                                            " the whole batch's gradient, which no step of ",
                                            ModeName(mode), " has; use bsp or allreduce"));
}

void CheckSync(const v1::JobSpec& spec, FieldChecks& faults) { SyncCheck(spec, faults).Run(); }

void CheckLogicalWorkers(const v1::JobSpec& spec, FieldChecks& faults) {
  const std::string field = "resources.workers.logical";
  const v1::WorkerCount& workers = spec.resources().workers();
  const int64_t logical = workers.logical();
  if (!faults.InRange<int64_t>(field, logical, 0, limits::kWorkersMax) || logical == 0) return;
  const auto add = [&](const auto&... parts) { faults.Add(field, absl::StrCat(parts...)); };
  if (spec.model().has_external()) {
    add("not with model.external: the program decides how it sums over its samples; remove it");
    return;
  }
  const int64_t most = std::max(workers.min(), workers.max());
  if (logical < most) {
    add("must be at least ", workers.max() >= workers.min() ? "max" : "min", " = ", most, " (is ",
        logical,
        "): every worker computes at least one share of the batch; use fewer workers, or "
        "submit the job with a larger logical");
  }
  const int64_t batch = spec.data().batch_size();
  if (batch > 0 && logical > batch) {
    add("must be at most data.batch_size = ", batch, " (is ", logical,
        "): every share needs a sample");
  }
  const v1::SyncSpec& sync = spec.sync();
  if (sync.mode() == v1::ALLREDUCE) {
    add("not with sync.mode allreduce: the order of its sums depends on the number of workers; use "
        "bsp");
  } else if (sync.mode() > v1::BSP) {
    add("only with sync.mode bsp (is ", ModeName(sync.mode()),
        "): the update depends on the number of workers; remove it");
  } else if (sync.backup_workers() > 0) {
    add("not with sync.backup_workers (is ", sync.backup_workers(),
        "): timing decides which gradients a step has; remove one of them");
  }
  const v1::CompressionKind kind = sync.compression().kind();
  if (kind > v1::COMPRESSION_NONE) {
    const google::protobuf::EnumValueDescriptor* name =
        v1::CompressionKind_descriptor()->FindValueByNumber(kind);
    add("not with sync.compression", name != nullptr ? absl::StrCat(" ", EnumName(*name)) : "",
        ": it rounds each worker's sum, which depends on the number of workers; sync.values: bf16 "
        "works");
  }
  const int64_t micro_batch = spec.training().micro_batch_size();
  if (micro_batch > 0) {
    add("not with training.micro_batch_size (is ", micro_batch,
        "): a share is computed at once; for less memory give more shares");
  }
  if (spec.training().has_deterministic() && !spec.training().deterministic()) {
    add("needs training.deterministic, which is false; remove that line");
  }
}

}  // namespace muster
