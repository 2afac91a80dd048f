// muster render.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/job_check.h"
#include "cli/render.h"
#include "cli/session.h"
#include "lib/job/job_file.h"
#include "lib/job/job_validation.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

struct RenderCommand {
  std::string file, target;
  std::vector<std::string> settings;
  RenderOptions options;
};

absl::Status RenderJob(const RenderCommand& command) {
  RenderOptions options = command.options;
  ASSIGN_OR_RETURN(options.target, ParseRenderTarget(command.target));
  ASSIGN_OR_RETURN(const JobOverrides overrides, ParseOverrides(command.settings));
  ASSIGN_OR_RETURN(const std::string text, ReadJobFile(command.file));
  ASSIGN_OR_RETURN(v1::JobSpec job, ParseJobFile(text, command.file, overrides));
  // Paths of the job are not this machine's: its data are not looked at.
  if (const auto faults = ValidateJobSpec(job); !faults.empty()) {
    return LocateFaults(FaultsToStatus(faults), text, command.file, overrides);
  }
  FillDefaults(job);
  ASSIGN_OR_RETURN(const std::string rendered, Render(job, options));
  std::fputs(rendered.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddRenderCommand(CLI::App& app, Session& session) {
  auto command = std::make_shared<RenderCommand>();
  CLI::App* render =
      AddCommand(app, "render", "A job with a fleet of its own, for a batch system",
                 "muster render --target jobset job.yaml --insecure | kubectl apply -f -");
  RenderOptions& options = command->options;
  render->add_option("FILE", command->file, "Job file (docs/job_spec.md)")->required();
  render->add_option("--target", command->target, "jobset, kueue, volcano or slurm")->required();
  render->add_option("--set", command->settings, "FIELD=VALUE instead of the file's")
      ->allow_extra_args(false);
  render->add_option("--workers", options.workers, "How many; default: the job's maximum");
  render->add_option("--devices", options.devices, "Of each worker: cpu, cuda:all, ...");
  render->add_option("--gpus", options.gpus, "Of each worker");
  render->add_option("--queue", options.queue, "Kueue's, Volcano's, or Slurm's partition");
  render->add_option("--namespace", options.name_space, "Default: muster");
  render->add_option("--image-prefix", options.image_prefix, "registry.example.com/team/");
  render->add_option("--data-claim", options.data_claim, "Volume claim for /data of workers");
  render->add_option("--state-claim", options.state_claim, "Volume claim for checkpoints");
  render->add_option("--programs", options.programs, "Slurm: default /opt/muster");
  render->add_option("--tls", options.tls, "Slurm: folder with certificates");
  render->add_flag("--insecure", options.insecure, "Without certificates");
  render->callback([command, &session] { session.Fail(RenderJob(*command)); });
}

}  // namespace muster::cli
