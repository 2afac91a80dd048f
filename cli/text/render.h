// Renders a job for a batch system: coordinator, ps, workers and the submission of the job in one
// manifest or script. They start for this job and end with it.
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
  kKueue,    // a JobSet that is suspended until Kueue admits it
  kVolcano,  // batch.volcano.sh/v1alpha1
  kSlurm,    // a script for sbatch
};

// Parses "jobset", "kueue", "volcano" or "slurm". Returns INVALID_ARGUMENT for other words.
absl::StatusOr<RenderTarget> ParseRenderTarget(absl::string_view word);

struct RenderOptions {
  RenderTarget target = RenderTarget::kJobSet;
  int64_t workers = 0;          // 0: the job's maximum
  std::string devices = "cpu";  // the workers' --devices
  int64_t gpus = 0;             // per worker
  bool insecure = false;        // without certificates
  std::string tls = "";         // Slurm: the folder with certificates; Kubernetes takes Secrets
  std::string queue = "";       // Kueue: LocalQueue (required); Volcano: queue; Slurm: partition
  std::string name_space = "muster";
  std::string image_prefix = "";  // before the names of images
  std::string data_claim = "";    // PersistentVolumeClaim that workers read at /data
  std::string state_claim = "";   // of the coordinator; "": checkpoints vanish with the job
  std::string programs = "";      // Slurm: where tools/tarball.sh was unpacked; "": /opt/muster
};

// Returns the manifest or the script. Returns INVALID_ARGUMENT, naming the option, if the options
// contradict the target, the job or each other. Requires: `job` is valid.
absl::StatusOr<std::string> Render(const v1::JobSpec& job, const RenderOptions& options);

}  // namespace muster::cli
