// The worker process. It computes gradients for the jobs that the coordinator assigns to it.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "lib/collective/nccl_environment.h"
#include "lib/concurrency/cpu_quota.h"
#include "lib/engine/backends/device_list.h"
#include "lib/file/beneath.h"
#include "lib/fleet/channel.h"
#include "lib/fleet/daemon.h"
#include "lib/fleet/departure.h"
#include "lib/fleet/fleet_client.h"
#include "lib/fleet/health_server.h"
#include "lib/fleet/log_ring.h"
#include "lib/fleet/security_flags.h"
#include "lib/fleet/trace_teller.h"
#include "lib/job/path_rules.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/log/log_scope.h"
#include "lib/security/identity.h"
#include "lib/telemetry/gpu_metrics.h"
#include "lib/telemetry/metrics.h"
#include "lib/telemetry/trace.h"
#include "lib/telemetry/trace_file.h"
#include "lib/transport/routing/transport_flags.h"
#include "lib/version/build.h"
#include "services/worker/program/program_port.h"
#include "services/worker/worker.h"

ABSL_FLAG(std::string, coordinator, "127.0.0.1:7070",
          "host:port of the coordinator; several, separated by commas, if standbys may take over");
ABSL_FLAG(std::string, name, "", "this member's name in the fleet; default worker-<host>-<pid>");
ABSL_FLAG(std::string, devices, "cpu",
          "devices to compute on: cpu, cpu:N for N CPU devices, cuda:all, or cuda:0,1");
ABSL_FLAG(
    int, threads_per_device, 0,
    "threads of the math libraries on a CPU device; 0: (usable cores - 1) / devices, at least 1");
ABSL_FLAG(bool, place_gpus, false,
          "keep the thread and the memory of each GPU on its NUMA node, and give the collective "
          "operations of several GPUs priority; the gain was never measured");
ABSL_FLAG(
    double, peak_flops, 0,
    "peak FLOP/s of a device in the precision of its jobs, for muster_worker_peak_flops; 0: from "
    "the datasheet, for known GPUs");
ABSL_FLAG(
    absl::Duration, drain_timeout, absl::Seconds(20),
    "how long the process drains after SIGTERM, until its jobs continue without it; at most 15s at "
    "a time while there is no coordinator");
ABSL_FLAG(std::string, checkpoint_root, "",
          "path here of the coordinator's STATE_DIR/jobs, on a shared volume; this member writes "
          "checkpoints of jobs with checkpoint.mode direct below it; empty: it sends them");
ABSL_FLAG(std::string, metrics, "",
          "host:port of /metrics; port 0 picks a free one; default 0.0.0.0:9402 with --tls or "
          "--insecure, else 127.0.0.1:9402");
ABSL_FLAG(std::string, data_roots, "",
          "folders, separated by commas, that must contain the files that jobs name; empty: any "
          "file that this user may read");
ABSL_FLAG(std::string, index_folder, "",
          "folder for indexes of TFRecord, tar and CSV files, which the processes of a host may "
          "share; empty: each job makes its index again");
ABSL_FLAG(
    std::string, program_socket, "",
    "path of the Unix socket at which programs of jobs with model.external attach; none: this "
    "worker runs no such jobs; default muster-<uid>/<name>.sock below $XDG_RUNTIME_DIR, else "
    "below /tmp");
ABSL_FLAG(bool, allow_programs, false,
          "start the commands of jobs with `program`; every submitter of a job can then run any "
          "command as this user");
ABSL_FLAG(std::string, trace, "",
          "file for a trace of steps and chunks; open it in ui.perfetto.dev; empty: none");
ABSL_FLAG(
    bool, no_overlap, false,
    "begin a forward pass only when all parameters have arrived: shows the gain of overlapping");
ABSL_FLAG(bool, no_priority, false,
          "send gradients in the order in which they become final: shows the gain of priorities");
ABSL_FLAG(
    int64_t, inflight_bytes, muster::limits::kInflightBytesMax,
    "most gradient bytes under way, counted from the oldest that has not arrived; two chunks are "
    "always allowed. More urgent gradients cannot overtake bytes that are under way");

namespace muster {
namespace {

constexpr int kMetricsPort = 9402;

constexpr absl::Duration kFinishStepMax =
    absl::Seconds(4);  // if the job did not continue without this worker
constexpr absl::Duration kDetachMax = absl::Seconds(5);

v1::Hello HelloOf(const std::string& name, const std::vector<std::string>& devices,
                  const Metrics& metrics, const DaemonSecurity& security) {
  v1::Hello hello = Introduce(v1::WORKER, name);
  hello.mutable_devices()->Add(devices.begin(), devices.end());
  hello.set_metrics_url(metrics.url());
  hello.set_version(ThisBuild().version);
  hello.set_insecure(security.insecure);
  hello.set_transport(TransportWord());
  return hello;
}

// Opens the socket for programs, or returns null: with --program_socket=none, and if the default
// path cannot be used, because few workers need it.
absl::StatusOr<std::unique_ptr<ProgramPort>> OpenProgramPort(const std::string& name) {
  const std::string flag = absl::GetFlag(FLAGS_program_socket);
  if (flag == "none") return nullptr;
  if (!flag.empty()) return ProgramPort::Listen(flag);
  const absl::StatusOr<std::string> path = DefaultProgramSocket(name);
  absl::StatusOr<std::unique_ptr<ProgramPort>> port =
      path.ok() ? ProgramPort::Listen(*path) : path.status();
  if (port.ok()) return port;
  LOG(WARNING) << "no socket for programs: " << port.status().message()
               << "; jobs with model.external will fail here (--program_socket)";
  return nullptr;
}

int Main() {
  if (absl::GetFlag(FLAGS_devices).starts_with("cuda")) SetNcclDefaults();  // before any thread
  const StopSignal stop;  // before the first thread, which inherits the signal mask
  const LogRing log;
  std::string name = absl::GetFlag(FLAGS_name);
  if (name.empty()) name = DefaultMemberName(v1::WORKER);
  if (!IsValidName(name)) {
    LOG(ERROR) << "--name: '" << name << "' is no valid name";
    return kExitConfig;
  }
  LogScope::SetProcessMember(name);
  const auto list = ParseDeviceList(absl::GetFlag(FLAGS_devices));
  if (!list.ok()) {
    LOG(ERROR) << "--devices: " << list.status().message();
    return kExitConfig;
  }
  const std::vector<std::string>& devices = *list;
  int threads = absl::GetFlag(FLAGS_threads_per_device);
  if (threads < 0) {
    LOG(ERROR) << "--threads_per_device: must not be negative (is " << threads << ")";
    return kExitConfig;
  }
  if (!(absl::GetFlag(FLAGS_peak_flops) >= 0)) {
    LOG(ERROR) << "--peak_flops: must not be negative (is " << absl::GetFlag(FLAGS_peak_flops)
               << ")";
    return kExitConfig;
  }
  // One core stays free for communication. The math library's threads spin while they wait for one
  // another, so a preempted thread stalls all of them.
  if (threads == 0) threads = std::max(1, (UsableCpus() - 1) / static_cast<int>(devices.size()));
  const absl::StatusOr<DaemonSecurity> security = SecurityFromFlags();
  if (!security.ok()) {
    LOG(ERROR) << security.status().message();
    return kExitConfig;
  }
  const auto metrics_address = ListenAddress(*security, absl::GetFlag(FLAGS_metrics), kMetricsPort);
  if (!metrics_address.ok()) {
    LOG(ERROR) << "--metrics: " << metrics_address.status().message();
    return kExitConfig;
  }
  const auto paths = PathRules::Parse(absl::GetFlag(FLAGS_data_roots));
  if (!paths.ok()) {
    LOG(ERROR) << "--data_roots: " << paths.status().message();
    return kExitConfig;
  }
  SetDataRoots(paths->roots());
  const absl::StatusOr<CoordinatorTarget> coordinator =
      TargetFor(*security, absl::GetFlag(FLAGS_coordinator));
  if (!coordinator.ok()) {
    LOG(ERROR) << "--coordinator, --tls: " << coordinator.status().message();
    return absl::IsUnavailable(coordinator.status()) ? kExitUnavailable : kExitConfig;
  }
  Metrics metrics(ToLabels(ThisBuild()));
  ExportSecurity(*security, Role::kWorker, metrics);
  if (absl::Status served = metrics.Serve(*metrics_address); !served.ok()) {
    LOG(ERROR) << "--metrics: " << served.message();
    return absl::IsInvalidArgument(served) ? kExitConfig : kExitUnavailable;
  }

  if (!devices.front().starts_with("cpu")) {
    if (const auto gpus = OpenGpuMetrics(); gpus.ok()) {
      metrics.Add(*gpus);
    } else {
      LOG(WARNING) << "no GPU metrics: " << gpus.status().message();
    }
  }

  const auto health = HealthServerFromFlags("worker");
  if (!health.ok()) {
    LOG(ERROR) << health.status().message();
    return absl::IsInvalidArgument(health.status()) ? kExitConfig : kExitUnavailable;
  }
  const absl::StatusOr<TransportFactory> transport = TransportFromFlags(
      {.busy_threads = threads * static_cast<int>(devices.size())}, metrics,
      security->reaches_beyond_host() ? DataReach::kAnywhere : DataReach::kThisHost);
  if (!transport.ok()) {
    LOG(ERROR) << transport.status().message();
    return absl::IsInvalidArgument(transport.status()) ? kExitConfig : kExitUnavailable;
  }

  const absl::StatusOr<std::unique_ptr<ProgramPort>> programs = OpenProgramPort(name);
  if (!programs.ok()) {
    LOG(ERROR) << "--program_socket: " << programs.status().message();
    return kExitConfig;
  }

  Trace trace;
  std::unique_ptr<TraceFile> trace_file;
  if (const std::string path = absl::GetFlag(FLAGS_trace); !path.empty()) {
    absl::StatusOr<std::unique_ptr<TraceFile>> created = TraceFile::Create(path, &trace);
    if (!created.ok()) {
      LOG(ERROR) << "--trace: " << created.status().message();
      return kExitConfig;
    }
    trace_file = *std::move(created);
  }

  std::atomic<bool> device_lost = false;
  std::atomic<FleetClient*> reporter = nullptr;  // directives may arrive before it is set
  const auto report_soon = [&reporter] {
    if (FleetClient* client = reporter) client->ReportSoon();
  };
  Worker worker({.member = name,
                 .devices = devices,
                 .threads_per_device = threads,
                 .place_gpus = absl::GetFlag(FLAGS_place_gpus),
                 .peak_flops = absl::GetFlag(FLAGS_peak_flops),
                 .transport = *transport,
                 .coordinator = *coordinator,
                 .checkpoint_root = absl::GetFlag(FLAGS_checkpoint_root),
                 .paths = *paths,
                 .index_folder = absl::GetFlag(FLAGS_index_folder),
                 .allow_programs = absl::GetFlag(FLAGS_allow_programs),
                 .tuning = {.overlap = !absl::GetFlag(FLAGS_no_overlap),
                            .priority = !absl::GetFlag(FLAGS_no_priority),
                            .inflight_bytes_max = absl::GetFlag(FLAGS_inflight_bytes),
                            .trace = &trace},
                 .metrics = &metrics,
                 .report_soon = report_soon,
                 .device_lost =
                     [&device_lost] {
                       device_lost = true;
                       StopSignal::Raise();
                     },
                 .trace_file = trace_file.get(),
                 .programs = programs->get()});
  // The returned pointer owns nothing, because `trace` lives as long as Main() runs.
  TraceTeller traces(
      [&worker](const std::string& job) {
        return std::shared_ptr<Trace>(std::shared_ptr<void>(), worker.TraceOf(job));
      },
      report_soon);
  FleetClient client({.coordinator = *coordinator,
                      .hello = HelloOf(name, devices, metrics, *security),
                      .refused = StopSignal::Raise,
                      .drained = StopSignal::Raise,
                      .log = &log,
                      .traces = &traces},
                     &worker);
  reporter = &client;
  (*health)->ReadyWhile([&client] { return client.attached(); });
  LOG(INFO) << name << ": " << devices.size() << " devices with " << threads
            << " threads each, metrics at " << metrics.url();

  const int signal = stop.Await();
  (*health)->Leave();
  const bool refused = !client.refusal().ok();
  LOG(INFO) << name << ": "
            << (refused       ? "refused"
                : device_lost ? "has lost a device"
                              : strsignal(signal))
            << ", leaving";
  worker.Leave();
  if (!refused) LeaveFleet(client, absl::GetFlag(FLAGS_drain_timeout));
  worker.FinishStep(kFinishStepMax);
  client.Detach(kDetachMax);
  reporter = nullptr;
  if (refused) return kExitRefused;
  return device_lost ? kExitDeviceLost : kExitOk;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  const muster::ExitCode parsed = muster::ParseCommandLine(
      argc, argv, "Muster worker: computes gradients on this machine's devices.");
  return parsed == muster::kExitOk ? muster::Main() : parsed;
}
