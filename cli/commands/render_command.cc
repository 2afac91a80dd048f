// Implements muster render.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/commands/session.h"
#include "cli/local/job_check.h"
#include "cli/text/render.h"
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
  // The paths of the job belong to other machines, so its data are not checked.
  if (const auto faults = ValidateJobSpec(job); !faults.empty()) {
    return LocateFaults(FaultsToStatus(faults), text, command.file, overrides);
  }
  FillDefaults(job);
  ASSIGN_OR_RETURN(const std::string rendered, Render(job, options));
  std::fputs(rendered.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddRenderCommand(Command program, Session& session) {
  auto command = std::make_shared<RenderCommand>();
  Command render =
      program.AddCommand("render", "Render a job with its own fleet for a batch system",
                         "muster render --target jobset job.yaml --insecure | kubectl apply -f -");
  RenderOptions& options = command->options;
  render.AddOption("FILE", command->file, "Job file (docs/job_spec.md)").Required();
  render.AddOption("--target", command->target, "jobset, kueue, volcano or slurm").Required();
  render.AddOption("--set", command->settings, "FIELD=VALUE, replaces a field of the file")
      .OneValueEach();
  render.AddOption("--workers", options.workers, "Number; default: the job's maximum");
  render.AddOption("--devices", options.devices, "Devices of each worker: cpu, cuda:all, ...");
  render.AddOption("--gpus", options.gpus, "GPUs of each worker");
  render.AddOption("--queue", options.queue, "Queue of Kueue or Volcano, partition of Slurm");
  render.AddOption("--namespace", options.name_space, "Default: muster");
  render.AddOption("--image-prefix", options.image_prefix, "registry.example.com/team/");
  render.AddOption("--data-claim", options.data_claim, "Volume claim for /data of workers");
  render.AddOption("--state-claim", options.state_claim, "Volume claim for checkpoints");
  render.AddOption("--programs", options.programs, "Slurm: default /opt/muster");
  render.AddOption("--tls", options.tls, "Slurm: folder with certificates");
  render.AddFlag("--insecure", options.insecure, "Without certificates");
  render.SetAction([command, &session] { session.Fail(RenderJob(*command)); });
}

}  // namespace muster::cli
