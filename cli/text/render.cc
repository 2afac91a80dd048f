#include "cli/text/render.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "lib/job/job_file.h"
#include "lib/job/resource_name.h"
#include "lib/status/status.h"
#include "lib/version/version.h"

namespace muster::cli {
namespace {

// One kind of process of the job. Ports, and resources without GPUs, are those of the same role in
// k8s/base. The submission has no role there.
struct Role {
  std::string name;
  int64_t count;
  std::string image;
  std::vector<std::string> arguments;
  std::string resources;  // of a container, as YAML in one line
  int64_t grace_seconds;
  int64_t data_port = 0;
};

std::string Indented(absl::string_view text, int spaces) {
  const std::string margin(spaces, ' ');
  std::string indented;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!line.empty()) absl::StrAppend(&indented, margin, line);
    indented += '\n';
  }
  indented.pop_back();
  return indented;
}

int64_t WorkersOf(const v1::JobSpec& job, const RenderOptions& options) {
  return options.workers != 0 ? options.workers : job.resources().workers().max();
}

// Returns the host name under which pods of the job reach the coordinator. JobSet, or Volcano's
// plugin svc, creates it.
std::string CoordinatorHost(const v1::JobSpec& job, RenderTarget target) {
  return absl::StrCat(job.name(), "-coordinator-0", target == RenderTarget::kVolcano ? "" : "-0",
                      ".", job.name());
}

std::string Resources(absl::string_view cpu, absl::string_view memory, int64_t gpus) {
  const std::string amounts =
      absl::StrCat("{cpu: \"", cpu, "\", memory: ", memory,
                   gpus > 0 ? absl::StrCat(", nvidia.com/gpu: ", gpus) : "", "}");
  return absl::StrCat("{requests: ", amounts, ", limits: ", amounts, "}");
}

std::vector<Role> RolesOf(const v1::JobSpec& job, const RenderOptions& options) {
  const std::string security = options.insecure ? "--insecure" : "--tls=/etc/muster/tls";
  const std::string links = absl::StrCat("--data_security=", options.insecure ? "auth" : "encrypt");
  const std::string index = options.target == RenderTarget::kVolcano ? "VC_TASK_INDEX" : "INDEX";
  const std::string address =
      absl::StrCat("--coordinator=", CoordinatorHost(job, options.target), ":7070");
  std::vector<Role> roles = {
      {.name = "coordinator",
       .count = 1,
       .image = "muster-coordinator",
       .arguments = {"--listen=0.0.0.0:7070", "--metrics=0.0.0.0:9400", "--health=0.0.0.0:9410",
                     "--state_dir=/var/lib/muster", security},
       .resources = Resources("1", "4Gi", 0),
       .grace_seconds = 30}};
  if (job.resources().ps() > 0) {
    roles.push_back(
        {.name = "ps",
         .count = job.resources().ps(),
         .image = "muster-ps",
         .arguments = {address, absl::StrCat("--name=ps-$(", index, ")"), "--metrics=0.0.0.0:9401",
                       "--health=0.0.0.0:9410", "--data_port=9500", links, security},
         .resources = Resources("4", "16Gi", 0),
         .grace_seconds = 30,
         .data_port = 9500});
  }
  roles.push_back(
      {.name = "worker",
       .count = WorkersOf(job, options),
       .image = options.gpus > 0 ? "muster-worker-cuda" : "muster-worker",
       .arguments = {address, absl::StrCat("--name=worker-$(", index, ")"),
                     absl::StrCat("--devices=", options.devices), "--metrics=0.0.0.0:9402",
                     "--health=0.0.0.0:9410", "--data_port=9500", links, security},
       .resources = Resources(options.gpus > 0 ? "16" : "4", options.gpus > 0 ? "128Gi" : "8Gi",
                              options.gpus),
       .grace_seconds = 30,
       .data_port = 9500});
  // The request id makes a retry of this pod harmless: the same id creates the same job. All pods
  // start together, and the name of the coordinator does not resolve before its pod exists, so the
  // submission waits.
  std::vector<std::string> submit = {
      absl::StrCat("--server=", CoordinatorHost(job, options.target), ":7070"),
      "submit",
      "--wait",
      absl::StrCat("--request-id=", job.name()),
      "--wait-for-coordinator=5m",
      "/etc/muster/job/job.yaml"};
  if (!options.insecure) submit.insert(submit.begin(), "--tls=/etc/muster/tls");
  roles.push_back({.name = "submit",
                   .count = 1,
                   .image = "muster-cli",
                   .arguments = submit,
                   .resources = Resources("1", "1Gi", 0),
                   .grace_seconds = 30});
  return roles;
}

std::string Ports(const Role& role) {
  if (role.name == "submit") return "";
  std::string ports = "  ports:\n";
  if (role.name == "coordinator")
    absl::StrAppend(&ports, "    - {name: grpc, containerPort: 7070}\n");
  if (role.data_port > 0) {
    absl::StrAppend(&ports, "    - {name: data, containerPort: ", role.data_port, "}\n");
  }
  return absl::StrCat(ports, "    - {name: health, containerPort: 9410}\n",
                      "  livenessProbe:\n    grpc: {port: 9410}\n    initialDelaySeconds: 10\n",
                      "    timeoutSeconds: 5\n    failureThreshold: 6\n",
                      // A process that hangs ignores SIGTERM, so the kubelet need not wait long.
                      "    terminationGracePeriodSeconds: 10\n");
}

struct Volume {
  std::string name, source, path;
  bool read_only = true;
};

std::vector<Volume> VolumesOf(const Role& role, const v1::JobSpec& job,
                              const RenderOptions& options) {
  std::vector<Volume> volumes = {{"tmp", "emptyDir: {sizeLimit: 1Gi}", "/tmp", false}};
  if (role.name == "coordinator") {
    volumes.push_back(
        {"state",
         options.state_claim.empty()
             ? "emptyDir: {}"
             : absl::StrCat("persistentVolumeClaim: {claimName: ", options.state_claim, "}"),
         "/var/lib/muster", false});
  }
  if (role.name == "worker" && !options.data_claim.empty()) {
    volumes.push_back({"data",
                       absl::StrCat("persistentVolumeClaim: {claimName: ", options.data_claim,
                                    ", readOnly: true}"),
                       "/data"});
  }
  if (role.name == "worker" && options.gpus > 0) {
    volumes.push_back({"shm", "emptyDir: {medium: Memory, sizeLimit: 16Gi}", "/dev/shm", false});
  }
  if (role.name == "submit") {
    volumes.push_back(
        {"job", absl::StrCat("configMap: {name: ", job.name(), "-job}"), "/etc/muster/job"});
  }
  if (!options.insecure) {
    const std::string whose = role.name == "submit" ? "admin" : role.name;
    volumes.push_back(
        {"tls", absl::StrCat("secret: {secretName: muster-", whose, "-tls, defaultMode: 0440}"),
         "/etc/muster/tls"});
  }
  return volumes;
}

// Returns the metadata and spec of a pod template.
std::string PodTemplate(const Role& role, const v1::JobSpec& job, const RenderOptions& options) {
  std::string mounts, volumes;
  for (const Volume& volume : VolumesOf(role, job, options)) {
    absl::StrAppend(&mounts, "    - {name: ", volume.name, ", mountPath: ", volume.path,
                    volume.read_only ? ", readOnly: true" : "", "}\n");
    absl::StrAppend(&volumes, "  - name: ", volume.name, "\n    ", volume.source, "\n");
  }
  std::string arguments;
  for (const std::string& argument : role.arguments) {
    absl::StrAppend(&arguments, "    - ", argument, "\n");
  }
  // Volcano's plugin env sets VC_TASK_INDEX instead.
  const bool needs_index = role.data_port > 0 && options.target != RenderTarget::kVolcano;
  const std::string container = absl::StrCat(
      "- name: ", role.name, "\n", "  image: ", options.image_prefix, role.image, ":", Version(),
      "\n", "  args:\n", arguments,
      needs_index ? "  env:\n    - name: INDEX\n      valueFrom:\n        fieldRef: {fieldPath: "
                    "\"metadata.annotations['batch.kubernetes.io/job-completion-index']\"}\n"
                  : "",
      Ports(role), "  resources: ", role.resources, "\n", "  securityContext:\n",
      "    allowPrivilegeEscalation: false\n    readOnlyRootFilesystem: true\n",
      "    capabilities: {drop: [ALL]}\n", "  volumeMounts:\n", mounts);
  return absl::StrCat(
      "metadata:\n  labels: {app.kubernetes.io/part-of: muster, muster.io/job: ", job.name(),
      ", app.kubernetes.io/component: ", role.name, "}\n", "spec:\n",
      // A daemon restarts in its pod. A failed submission gets a new pod, so that its exit code is
      // seen.
      "  restartPolicy: ", role.name == "submit" ? "Never" : "OnFailure", "\n",
      "  terminationGracePeriodSeconds: ", role.grace_seconds, "\n",
      "  automountServiceAccountToken: false\n  enableServiceLinks: false\n",
      "  securityContext:\n",
      "    runAsNonRoot: true\n    runAsUser: 65532\n    runAsGroup: 65532\n    fsGroup: 65532\n",
      "    seccompProfile: {type: RuntimeDefault}\n", "  containers:\n", Indented(container, 4),
      "  volumes:\n", Indented(volumes, 2));
}

std::string Heading(const v1::JobSpec& job, const RenderOptions& options) {
  std::string heading =
      absl::StrCat("# muster render: ", job.name(), "; starts for this job and ends with it.\n");
  if (options.insecure) {
    absl::StrAppend(&heading,
                    "# Without certificates: only the NetworkPolicy keeps other pods out.\n");
  } else {
    absl::StrAppend(&heading, "# Needs the Secrets muster-coordinator-tls, muster-ps-tls, ",
                    "muster-worker-tls and muster-admin-tls\n# (docs/kubernetes_settings.md); the ",
                    "coordinator's certificate must have the name ",
                    CoordinatorHost(job, options.target), ".\n");
  }
  if (options.state_claim.empty()) {
    absl::StrAppend(
        &heading, "# Checkpoints vanish with the pods; --state-claim names a volume that stays.\n");
  }
  return heading;
}

// Returns the job file as a ConfigMap, and a NetworkPolicy. It lets the job's pods talk only to
// each other and to the cluster's DNS.
std::string CommonObjects(const v1::JobSpec& job, const RenderOptions& options) {
  const std::string metadata = absl::StrCat(
      "  namespace: ", options.name_space,
      "\n  labels: {app.kubernetes.io/part-of: muster, muster.io/job: ", job.name(), "}\n");
  const std::string ours =
      absl::StrCat("podSelector: {matchLabels: {muster.io/job: ", job.name(), "}}");
  return absl::StrCat(
      "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: ", job.name(), "-job\n", metadata,
      "data:\n  job.yaml: |\n", Indented(ToYaml(job), 4),
      "\n---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: ",
      job.name(), "\n", metadata, "spec:\n  ", ours, "\n  policyTypes: [Ingress, Egress]\n",
      "  ingress:\n    - from:\n        - ", ours, "\n  egress:\n    - to:\n        - ", ours,
      "\n    - to:\n        - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ",
      "kube-system}}\n          podSelector: {matchLabels: {k8s-app: kube-dns}}\n      ports:\n",
      "        - {protocol: UDP, port: 53}\n        - {protocol: TCP, port: 53}\n---\n");
}

std::string JobSet(const v1::JobSpec& job, const RenderOptions& options) {
  std::string jobs;
  for (const Role& role : RolesOf(job, options)) {
    // With exit code 1 the job failed, with 2 it is faulty. A retry would not help.
    const std::string failures =
        role.name == "submit"
            ? "          podFailurePolicy:\n            rules:\n              - action: FailJob\n"
              "                onExitCodes: {containerName: submit, operator: In, values: [1, 2]}\n"
              // Kubernetes 1.27 requires the field; later versions accept it.
              "                onPodConditions: []\n"
            : "";
    absl::StrAppend(&jobs, "    - name: ", role.name, "\n      replicas: 1\n      template:\n",
                    "        spec:\n          parallelism: ", role.count,
                    "\n          completions: ", role.count,
                    "\n          completionMode: Indexed\n          backoffLimit: 10\n", failures,
                    "          template:\n", Indented(PodTemplate(role, job, options), 12));
  }
  const bool is_kueue = options.target == RenderTarget::kKueue;
  return absl::StrCat(
      "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata:\n  name: ", job.name(),
      "\n  namespace: ", options.name_space, "\n",
      is_kueue ? absl::StrCat("  labels: {kueue.x-k8s.io/queue-name: ", options.queue, "}\n") : "",
      "spec:\n", is_kueue ? "  suspend: true\n" : "",
      "  network: {enableDNSHostnames: true, publishNotReadyAddresses: true}\n",
      "  successPolicy: {operator: All, targetReplicatedJobs: [submit]}\n  replicatedJobs:\n",
      jobs);
}

std::string Volcano(const v1::JobSpec& job, const RenderOptions& options) {
  int64_t pods = 0;
  std::string tasks;
  for (const Role& role : RolesOf(job, options)) {
    pods += role.count;
    const std::string policies =
        role.name == "submit" ? "      policies:\n        - {event: TaskCompleted, action: "
                                "CompleteJob}\n        - {event: TaskFailed, action: AbortJob}\n"
                              : "";
    absl::StrAppend(&tasks, "    - name: ", role.name, "\n      replicas: ", role.count, "\n",
                    policies, "      template:\n", Indented(PodTemplate(role, job, options), 8));
  }
  return absl::StrCat(
      "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata:\n  name: ", job.name(),
      "\n  namespace: ", options.name_space, "\nspec:\n  schedulerName: volcano\n",
      options.queue.empty() ? "" : absl::StrCat("  queue: ", options.queue, "\n"),
      "  minAvailable: ", pods,
      "\n  plugins:\n    env: []\n    svc: [--publish-not-ready-addresses=true, ",
      "--disable-network-policy=true]\n  tasks:\n", tasks);
}

constexpr absl::string_view kSlurmScript = R"(#!/bin/bash
# muster render: @NAME@; starts for this job and ends with it. Run: sbatch THIS_FILE
#SBATCH --job-name=@NAME@
#SBATCH --nodes=@WORKERS@
#SBATCH --ntasks-per-node=3
@DIRECTIVES@# Slurm sends SIGTERM 120 s before the time limit, which leaves time for a checkpoint.
#SBATCH --signal=B:TERM@120
set -uo pipefail
programs=${MUSTER_PROGRAMS:-@PROGRAMS@}
# The folder must be on a file system that all nodes share. Checkpoints stay there.
state=${MUSTER_STATE:-$PWD/@NAME@-$SLURM_JOB_ID}
mkdir -p "$state/logs" && rm -f "$state/address" || exit 73
cat >"$state/job.yaml" <<'END_OF_MUSTER_JOB'
@JOB@END_OF_MUSTER_JOB

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
steps=()
# Ends only this job's steps, the coordinator first: without it, members wait for at most 15 s.
finish() {
  for step in "${steps[@]}"; do kill -TERM "$step" 2>/dev/null; wait "$step"; done
}
trap finish EXIT

srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" --output="$state/logs/coordinator.log" \
  "$programs/coordinator" --listen="$head:0" --metrics="$head:0" --address_file="$state/address" \
  --state_dir="$state/coordinator" @SECURITY@ &
steps+=($!)
until [ -s "$state/address" ]; do
  kill -0 "${steps[0]}" 2>/dev/null || { echo "the coordinator ended; see $state/logs/coordinator.log" >&2; exit 1; }
  sleep 0.2
done
server=$(cat "$state/address")
@PS@srun --overlap --nodes=@WORKERS@ --ntasks=@WORKERS@ --ntasks-per-node=1 --output="$state/logs/worker-%t.log" \
  "$programs/worker" --coordinator="$server" --metrics=0.0.0.0:0 --devices=@DEVICES@ @LINKS@ @SECURITY@ &
steps+=($!)

"$programs/muster" --server="$server" @CLIENT@submit --wait --request-id="$SLURM_JOB_ID" "$state/job.yaml" &
submission=$!
suspend() {
  job=$("$programs/muster" --server="$server" @CLIENT@-o name list --state running | head -n 1)
  [ -z "$job" ] || "$programs/muster" --server="$server" @CLIENT@suspend "${job##*/}" --wait
  echo "stopped on request: checkpoints are in $state/coordinator/jobs; checkpoint.resume_from continues from one" >&2
  kill "$submission"
}
trap suspend TERM
while :; do # a signal ends the wait, not the submission
  wait "$submission"
  status=$?
  kill -0 "$submission" 2>/dev/null || exit "$status"
done
)";

constexpr absl::string_view kSlurmPs =
    R"(srun --overlap --ntasks=@COUNT@ --distribution=cyclic --output="$state/logs/ps-%t.log" \
  "$programs/ps" --coordinator="$server" --metrics=0.0.0.0:0 @LINKS@ @SECURITY@ &
steps+=($!)
)";

std::string Slurm(const v1::JobSpec& job, const RenderOptions& options) {
  std::string directives;
  if (options.gpus > 0)
    absl::StrAppend(&directives, "#SBATCH --gpus-per-node=", options.gpus, "\n");
  if (!options.queue.empty()) {
    absl::StrAppend(&directives, "#SBATCH --partition=", options.queue, "\n");
  }
  const std::string ps =
      job.resources().ps() == 0
          ? ""
          : absl::StrReplaceAll(kSlurmPs, {{"@COUNT@", absl::StrCat(job.resources().ps())}});
  // The ps part goes in first, because it contains placeholders itself.
  const std::string script = absl::StrReplaceAll(kSlurmScript, {{"@PS@", ps}});
  return absl::StrReplaceAll(
      script,
      {{"@NAME@", job.name()},
       {"@WORKERS@", absl::StrCat(WorkersOf(job, options))},
       {"@DIRECTIVES@", directives},
       {"@PROGRAMS@", options.programs.empty() ? "/opt/muster" : options.programs},
       {"@JOB@", ToYaml(job)},
       {"@DEVICES@", options.devices},
       {"@LINKS@", options.insecure ? "--data_security=auth" : "--data_security=encrypt"},
       {"@CLIENT@", options.insecure ? "" : absl::StrCat("--tls=", options.tls, " ")},
       {"@SECURITY@", options.insecure ? "--insecure" : absl::StrCat("--tls=", options.tls)}});
}

// Returns whether `text` can be written into YAML and shell scripts without quotes.
bool IsPlain(absl::string_view text) {
  constexpr absl::string_view kOthers = "-_./:,@";
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || kOthers.find(c) != kOthers.npos;
  });
}

absl::Status Fault(absl::string_view option, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(option, ": ", what));
}

absl::Status CheckOptions(const v1::JobSpec& job, const RenderOptions& options) {
  const bool is_slurm = options.target == RenderTarget::kSlurm;
  const struct {
    absl::string_view option;
    const std::string& value;
    bool fits;
    absl::string_view where;
  } words[] = {
      {"--devices", options.devices, true, ""},
      {"--tls", options.tls, is_slurm, "slurm; Kubernetes takes Secrets"},
      {"--queue", options.queue, options.target != RenderTarget::kJobSet, "kueue, volcano, slurm"},
      {"--image-prefix", options.image_prefix, !is_slurm, "Kubernetes"},
      {"--data-claim", options.data_claim, !is_slurm, "Kubernetes"},
      {"--state-claim", options.state_claim, !is_slurm, "Kubernetes"},
      {"--programs", options.programs, is_slurm, "slurm"}};
  for (const auto& word : words) {
    if (!word.value.empty() && !word.fits) {
      return Fault(word.option, absl::StrCat("is only for ", word.where));
    }
    if (!IsPlain(word.value)) {
      return Fault(word.option,
                   absl::StrCat("'", word.value, "' has characters with a special meaning ",
                                "in YAML or in a shell"));
    }
  }
  if (!IsValidName(options.name_space)) {
    return Fault("--namespace", absl::StrCat("'", options.name_space, "' is not a valid name"));
  }
  if (is_slurm && options.insecure == !options.tls.empty()) {
    return Fault("--tls", "give either the folder with certificates or --insecure");
  }
  if (options.target == RenderTarget::kKueue && options.queue.empty()) {
    return Fault("--queue", "name the LocalQueue that admits it");
  }
  const v1::WorkerCount& range = job.resources().workers();
  if (const int64_t workers = WorkersOf(job, options);
      workers < range.min() || workers > range.max()) {
    return Fault("--workers", absl::StrCat("the job takes ", range.min(), " to ", range.max(),
                                           " (is ", workers, ")"));
  }
  const bool has_gpus = absl::StartsWith(options.devices, "cuda");
  if (options.gpus < 0 || (options.gpus > 0) != has_gpus) {
    return Fault("--gpus",
                 absl::StrCat("give the number per worker if and only if --devices is ",
                              "cuda:... (is ", options.gpus, " with ", options.devices, ")"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RenderTarget> ParseRenderTarget(absl::string_view word) {
  if (word == "jobset") return RenderTarget::kJobSet;
  if (word == "kueue") return RenderTarget::kKueue;
  if (word == "volcano") return RenderTarget::kVolcano;
  if (word == "slurm") return RenderTarget::kSlurm;
  return Fault("--target",
               absl::StrCat("'", word, "' is not one of jobset, kueue, volcano and slurm"));
}

absl::StatusOr<std::string> Render(const v1::JobSpec& job, const RenderOptions& options) {
  RETURN_IF_ERROR(CheckOptions(job, options));
  switch (options.target) {
    case RenderTarget::kJobSet:
    case RenderTarget::kKueue:
      return absl::StrCat(Heading(job, options), CommonObjects(job, options), JobSet(job, options));
    case RenderTarget::kVolcano:
      return absl::StrCat(Heading(job, options), CommonObjects(job, options),
                          Volcano(job, options));
    case RenderTarget::kSlurm:
      return Slurm(job, options);
  }
  return absl::InternalError("no such target");
}

}  // namespace muster::cli
