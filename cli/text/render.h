// A job as a batch system takes it: coordinator, ps, workers and the submission of the job
// together, started for this job and ended with it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli {

enum class RenderTarget : uint8_t {
  kJobSet,   // jobset.x-k8s.io/v1alpha2
  kKueue,    // the same, suspended until Kueue admits it
  kVolcano,  // batch.volcano.sh/v1alpha1
  kSlurm,    // a script for sbatch
};

// INVALID_ARGUMENT for a word that is none of them.
absl::StatusOr<RenderTarget> ParseRenderTarget(absl::string_view word);

struct RenderOptions {
  RenderTarget target = RenderTarget::kJobSet;
  int64_t workers = 0;          // 0: as many as the job may have
  std::string devices = "cpu";  // the workers' --devices
  int64_t gpus = 0;             // that each worker asks for
  bool insecure = false;        // without certificates
  std::string tls = "";         // Slurm: the folder with certificates; Kubernetes takes Secrets
  std::string queue = "";       // Kueue: LocalQueue (required); Volcano: queue; Slurm: partition
  std::string name_space = "muster";
  std::string image_prefix = "";  // before the names of images
  std::string data_claim = "";    // PersistentVolumeClaim that workers read at /data
  std::string state_claim = "";   // of the coordinator; "": checkpoints go with the job
  std::string programs = "";      // Slurm: where tools/tarball.sh was unpacked; "": /opt/muster
};

// The manifest, or the script, of a valid job. INVALID_ARGUMENT: options that contradict the
// target, the job or each other; the message names the option.
absl::StatusOr<std::string> Render(const v1::JobSpec& job, const RenderOptions& options);

}  // namespace muster::cli
