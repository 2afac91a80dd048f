// Implements muster local: a detached cluster on this machine.
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/commands/session.h"
#include "cli/framework/coordinator_client.h"
#include "cli/framework/exit_code.h"
#include "cli/local/cluster_lock.h"
#include "cli/local/local_cluster.h"
#include "cli/local/local_prometheus.h"
#include "cli/text/job_text.h"
#include "cli/text/output.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/job/resource_name.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

struct UpOptions {
  std::string dir = DefaultLocalDir();
  // If unset: the value of the cluster in `dir`, or the default if there is none.
  std::optional<int> ps;
  std::optional<int> workers;
  std::optional<std::string> devices;
  std::optional<int> threads;
  bool observe = false;
};

constexpr int kPsDefault = 2;
constexpr int kWorkersDefault = 2;
constexpr absl::Duration kAttachTimeout = absl::Seconds(60);
// How long a process of a stopped cluster may take to end. The coordinator needs up to 20 s to save
// its running jobs.
constexpr absl::Duration kStopGrace = absl::Seconds(35);

std::string SizeText(const LocalCluster& cluster) {
  const LocalCluster::Options& size = cluster.options();
  return absl::StrCat(
      size.ps, " ps and ", size.workers, size.workers == 1 ? " worker" : " workers", " (devices ",
      size.devices,
      size.threads_per_device == 0 ? "" : absl::StrCat(", threads ", size.threads_per_device), ")");
}

bool IsAsWanted(const LocalCluster& cluster, const UpOptions& options) {
  const LocalCluster::Options& has = cluster.options();
  return options.ps.value_or(has.ps) == has.ps &&
         options.workers.value_or(has.workers) == has.workers &&
         options.devices.value_or(has.devices) == has.devices &&
         options.threads.value_or(has.threads_per_device) == has.threads_per_device;
}

// Starts or updates Prometheus if it was requested or already runs. An error is only printed,
// because the cluster works without it.
void Observe(const LocalCluster& cluster, bool asked_for) {
  LocalPrometheus prometheus(cluster.dir());
  if (!asked_for && !prometheus.url()) return;
  if (const absl::Status observed = prometheus.Observe(cluster); !observed.ok()) {
    std::fprintf(stderr, "cannot observe the cluster with Prometheus: %s\n",
                 std::string(observed.message()).c_str());
    return;
  }
  std::fprintf(stderr, "  Prometheus: %s\n", prometheus.url().value_or("has ended").c_str());
}

absl::Status StartNew(const UpOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<LocalCluster> cluster,
                   LocalCluster::Start({.dir = options.dir,
                                        .ps = options.ps.value_or(kPsDefault),
                                        .workers = options.workers.value_or(kWorkersDefault),
                                        .devices = options.devices.value_or("cpu"),
                                        .threads_per_device = options.threads.value_or(0),
                                        .lifetime = Lifetime::kDetached}));
  // Without MUSTER_SERVER, commands find only the cluster in the default folder.
  const std::string export_line =
      options.dir == DefaultLocalDir()
          ? ""
          : absl::StrCat("  export MUSTER_SERVER=", cluster->address(), "\n");
  std::printf("%s\n", cluster->address().c_str());
  std::fprintf(stderr,
               "%s are up; state and logs in %s\n"
               "%s"
               "  muster submit examples/linear.yaml --wait\n"
               "  %s\n"
               "  Status page: %s\n",
               SizeText(*cluster).c_str(), cluster->dir().c_str(), export_line.c_str(),
               LocalCommand("down", options.dir).c_str(), cluster->page().c_str());
  Observe(*cluster, options.observe);
  return absl::OkStatus();
}

// Restarts members that have ended, with their old flags.
absl::Status Heal(LocalCluster& cluster, bool observe) {
  ASSIGN_OR_RETURN(const std::vector<LocalCluster::Revival> revivals, cluster.Heal());
  for (const LocalCluster::Revival& revival : revivals) {
    std::fprintf(stderr, "%s (pid %d) %s: started again, pid %d\n", revival.name.c_str(),
                 revival.before, revival.end.c_str(), revival.pid);
  }
  RETURN_IF_ERROR(cluster.AwaitAttached(kAttachTimeout));
  std::printf("%s\n", cluster.address().c_str());
  std::fprintf(stderr, "%s are up; state and logs in %s\n  Status page: %s\n",
               SizeText(cluster).c_str(), cluster.dir().c_str(), cluster.page().c_str());
  Observe(cluster, observe);
  return absl::OkStatus();
}

absl::Status Up(const UpOptions& options) {
  ASSIGN_OR_RETURN(const auto lock, ClusterLock::Take(options.dir, "muster local up"));
  auto cluster = LocalCluster::Open(options.dir);
  if (absl::IsNotFound(cluster.status())) return StartNew(options);
  RETURN_IF_ERROR(cluster.status());
  if (!(*cluster)->whole()) {
    std::fprintf(stderr, "stopping the processes of an interrupted muster local up first\n");
    (*cluster)->Shutdown(kStopGrace);
    return StartNew(options);
  }
  if (IsAsWanted(**cluster, options)) return Heal(**cluster, options.observe);
  if (!(*cluster)->any_running()) return StartNew(options);
  return WithReason(
      absl::AlreadyExistsError(absl::StrCat("a local cluster with ", SizeText(**cluster),
                                            " runs already at ", (*cluster)->address(), "; ",
                                            LocalCommand("down", options.dir), " stops it")),
      "ALREADY_RUNNING");
}

// Returns the active jobs of the cluster, or none if its coordinator does not answer.
std::vector<v1::Job> ActiveJobs(const LocalCluster& cluster) {
  if (!cluster.running("coordinator")) return {};
  CoordinatorClient client(cluster.target());
  v1::ListJobsRequest request;
  request.set_view(v1::JOB_VIEW_BASIC);
  for (const v1::JobState state : {v1::PREPARING, v1::RUNNING, v1::RECOVERING}) {
    request.add_states(state);
  }
  auto jobs = client.ListJobs(request);
  if (!jobs.ok()) return {};
  return {jobs->jobs().begin(), jobs->jobs().end()};
}

// Prints the newest checkpoint of each job, read from the folder of the stopped cluster.
void TellWhatIsSaved(const LocalCluster& cluster, const std::vector<v1::Job>& jobs) {
  for (const v1::Job& job : jobs) {
    const std::string id = JobIdOf(job.name());
    const auto steps =
        ListCheckpointSteps(absl::StrCat(cluster.dir(), "/state/jobs/", id, "/checkpoints"));
    const std::string up = LocalCommand("up", cluster.dir());
    if (steps.ok() && !steps->empty()) {
      std::fprintf(stderr, "%s is saved at step %lld; %s continues from there\n", id.c_str(),
                   static_cast<long long>(steps->back()), up.c_str());
    } else {
      std::fprintf(stderr, "%s has no checkpoint; %s starts it from the beginning\n", id.c_str(),
                   up.c_str());
    }
  }
}

absl::Status Down(const std::string& dir) {
  // Open() comes first, because ClusterLock::Take() would create the folder of a wrong --dir.
  ASSIGN_OR_RETURN(std::unique_ptr<LocalCluster> cluster, LocalCluster::Open(dir));
  ASSIGN_OR_RETURN(const auto lock, ClusterLock::Take(dir, "muster local down"));
  ASSIGN_OR_RETURN(cluster, LocalCluster::Open(dir));  // reread under the lock
  LocalPrometheus(dir).Stop();
  const std::vector<v1::Job> jobs = ActiveJobs(*cluster);
  for (const v1::Job& job : jobs) {
    std::fprintf(stderr, "%s is %s at step %s: saving it\n", JobIdOf(job.name()).c_str(),
                 v1::JobState_Name(job.state()).c_str(), StepText(job.progress()).c_str());
  }
  cluster->Shutdown(kStopGrace);
  TellWhatIsSaved(*cluster, jobs);
  std::fprintf(stderr, "the local cluster is down; its state stays in %s\n", dir.c_str());
  return absl::OkStatus();
}

absl::Status PrintStatus(const std::string& dir, Session& session) {
  ASSIGN_OR_RETURN(const std::unique_ptr<LocalCluster> cluster, LocalCluster::Open(dir));
  Table table({"NAME", "STATE", "PID", "LOG"});
  bool all_run = true;
  for (const std::string& name : cluster->names()) {
    const pid_t pid = cluster->pid(name);
    all_run &= pid != 0;
    table.Add({name, pid != 0 ? "running" : "ended", pid != 0 ? absl::StrCat(pid) : "-",
               cluster->log_path(name)});
  }
  std::printf("%s\n%s", cluster->address().c_str(), table.ToString().c_str());
  if (cluster->running("coordinator")) {
    std::fprintf(stderr, "Status page: %s\n", cluster->page().c_str());
  }
  if (const auto url = LocalPrometheus(dir).url()) {
    std::fprintf(stderr, "Prometheus: %s\n", url->c_str());
  }
  if (!all_run) {
    std::fprintf(stderr, "%s restarts the processes that have ended\n",
                 LocalCommand("up", dir).c_str());
  }
  if (!cluster->running("coordinator")) session.exit_code = kExitUnavailable;
  return absl::OkStatus();
}

}  // namespace

void AddLocalCommands(Command program, Session& session) {
  Command local = program.AddCommand("local", "A cluster that keeps running on this machine",
                                     "muster local up --ps 2 --workers 2");
  local.RequireCommand();

  auto options = std::make_shared<UpOptions>();
  Command up = local.AddCommand("up", "Start coordinator, ps and workers that do not run",
                                "muster local up --ps 1 --workers 4");
  up.AddOption("--dir", options->dir, "State and logs; default: ~/.muster/local");
  up.AddOption("--ps", options->ps, "Parameter servers; default: 2").Within(1, 64);
  up.AddOption("--workers", options->workers, "Workers; default: 2").Within(1, 64);
  up.AddOption("--devices", options->devices, "Devices of each worker: cpu, cpu:2");
  up.AddOption("--threads", options->threads, "Threads of each device; default: they share cores")
      .Within(1, 1024);
  up.AddFlag("--observe", options->observe, "Start Prometheus too, with alerts");
  up.SetAction([options, &session] { session.Fail(Up(*options)); });

  auto dir = std::make_shared<std::string>(DefaultLocalDir());
  Command down = local.AddCommand("down", "Stop the cluster; its state stays", "muster local down");
  down.AddOption("--dir", *dir, "Its folder; default: ~/.muster/local");
  down.SetAction([dir, &session] { session.Fail(Down(*dir)); });

  Command status = local.AddCommand("status", "Address and processes", "muster local status");
  status.AddOption("--dir", *dir, "Its folder; default: ~/.muster/local");
  status.SetAction([dir, &session] { session.Fail(PrintStatus(*dir, session)); });
}

}  // namespace muster::cli
