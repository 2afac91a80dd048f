// The worker's program: flags, objects, wiring.
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
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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
#include "lib/status/status.h"
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

// Returns `result`. Marks its error as one that the next start would meet too, and puts the name of
// the flag in front.
template <typename T>
absl::StatusOr<T> Permanent(absl::string_view flag, absl::StatusOr<T> result) {
  if (result.ok()) return result;
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", result.status().message()));
}

// Returns INVALID_ARGUMENT if a flag is wrong, UNAVAILABLE if the certificate does not exist yet.
absl::StatusOr<CoordinatorTarget> CoordinatorFromFlags(const DaemonSecurity& security) {
  constexpr absl::string_view kFlags = "--coordinator, --tls";
  auto target = TargetFor(security, absl::GetFlag(FLAGS_coordinator));
  if (absl::IsUnavailable(target.status())) return Annotate(target.status(), kFlags);
  return Permanent(kFlags, std::move(target));
}

// Everything that the command line says about this worker, checked.
struct Settings {
  std::string name;
  std::vector<std::string> devices;
  int threads_per_device;
  double peak_flops;
  DaemonSecurity security;
  std::string metrics;
  PathRules paths;
  CoordinatorTarget coordinator;
};

absl::StatusOr<Settings> SettingsFromFlags() {
  std::string name = absl::GetFlag(FLAGS_name);
  if (name.empty()) name = DefaultMemberName(v1::WORKER);
  if (!IsValidName(name)) {
    return absl::InvalidArgumentError(absl::StrCat("--name: '", name, "' is no valid name"));
  }
  LogScope::SetProcessMember(name);  // first, because errors of the other flags name the member
  ASSIGN_OR_RETURN(auto devices,
                   Permanent("--devices", ParseDeviceList(absl::GetFlag(FLAGS_devices))));
  int threads = absl::GetFlag(FLAGS_threads_per_device);
  if (threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--threads_per_device: must not be negative (is ", threads, ")"));
  }
  // One core stays free for communication. The math library's threads spin while they wait for one
  // another, so a preempted thread stalls all of them.
  if (threads == 0) threads = std::max(1, (UsableCpus() - 1) / static_cast<int>(devices.size()));
  const double peak_flops = absl::GetFlag(FLAGS_peak_flops);
  if (!(peak_flops >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--peak_flops: must not be negative (is ", peak_flops, ")"));
  }
  ASSIGN_OR_RETURN(const DaemonSecurity security, SecurityFromFlags());
  ASSIGN_OR_RETURN(
      auto metrics,
      Permanent("--metrics", ListenAddress(security, absl::GetFlag(FLAGS_metrics), kMetricsPort)));
  ASSIGN_OR_RETURN(auto paths,
                   Permanent("--data_roots", PathRules::Parse(absl::GetFlag(FLAGS_data_roots))));
  ASSIGN_OR_RETURN(auto coordinator, CoordinatorFromFlags(security));
  return Settings{.name = std::move(name),
                  .devices = std::move(devices),
                  .threads_per_device = threads,
                  .peak_flops = peak_flops,
                  .security = security,
                  .metrics = std::move(metrics),
                  .paths = std::move(paths),
                  .coordinator = std::move(coordinator)};
}

v1::Hello HelloOf(const Settings& settings, const Metrics& metrics) {
  v1::Hello hello = Introduce(v1::WORKER, settings.name);
  hello.mutable_devices()->Add(settings.devices.begin(), settings.devices.end());
  hello.set_metrics_url(metrics.url());
  hello.set_version(ThisBuild().version);
  hello.set_insecure(settings.security.insecure);
  hello.set_transport(TransportWord());
  return hello;
}

void ExportGpus(const std::vector<std::string>& devices, Metrics& metrics) {
  if (devices.front().starts_with("cpu")) return;
  if (const auto gpus = OpenGpuMetrics(); gpus.ok()) {
    metrics.Add(*gpus);
  } else {
    LOG(WARNING) << "no GPU metrics: " << gpus.status().message();
  }
}

absl::StatusOr<TransportFactory> OpenTransport(const Settings& settings, Metrics& metrics) {
  const int threads = settings.threads_per_device * static_cast<int>(settings.devices.size());
  return TransportFromFlags(
      {.busy_threads = threads}, metrics,
      settings.security.reaches_beyond_host() ? DataReach::kAnywhere : DataReach::kThisHost);
}

// Opens the socket for programs, or returns null: with --program_socket=none, and if the default
// path cannot be used, because few workers need it.
absl::StatusOr<std::unique_ptr<ProgramPort>> OpenProgramPort(const std::string& name) {
  const std::string flag = absl::GetFlag(FLAGS_program_socket);
  if (flag == "none") return nullptr;
  if (!flag.empty()) return Permanent("--program_socket", ProgramPort::Listen(flag));
  const absl::StatusOr<std::string> path = DefaultProgramSocket(name);
  absl::StatusOr<std::unique_ptr<ProgramPort>> port =
      path.ok() ? ProgramPort::Listen(*path) : path.status();
  if (port.ok()) return port;
  LOG(WARNING) << "no socket for programs: " << port.status().message()
               << "; jobs with model.external will fail here (--program_socket)";
  return nullptr;
}

// Returns null without --trace.
absl::StatusOr<std::unique_ptr<TraceFile>> OpenTraceFile(Trace* trace) {
  const std::string path = absl::GetFlag(FLAGS_trace);
  if (path.empty()) return nullptr;
  return Permanent("--trace", TraceFile::Create(path, trace));
}

// Serves until a signal comes, the coordinator refuses this worker, or a device is lost.
absl::StatusOr<ExitCode> Serve(const Settings& settings, const StopSignal& stop,
                               const LogRing& log) {
  SetDataRoots(settings.paths.roots());
  Metrics metrics(ToLabels(ThisBuild()));
  ExportSecurity(settings.security, Role::kWorker, metrics);
  RETURN_IF_ERROR(Annotate(metrics.Serve(settings.metrics), "--metrics"));
  ExportGpus(settings.devices, metrics);
  ASSIGN_OR_RETURN(const auto health, HealthServerFromFlags("worker"));
  ASSIGN_OR_RETURN(const TransportFactory transport, OpenTransport(settings, metrics));
  ASSIGN_OR_RETURN(const auto programs, OpenProgramPort(settings.name));
  Trace trace;
  ASSIGN_OR_RETURN(const auto trace_file, OpenTraceFile(&trace));

  std::atomic<bool> device_lost = false;
  std::atomic<FleetClient*> reporter = nullptr;  // directives may arrive before it is set
  const auto report_soon = [&reporter] {
    if (FleetClient* client = reporter) client->ReportSoon();
  };
  Worker worker({.member = settings.name,
                 .devices = settings.devices,
                 .threads_per_device = settings.threads_per_device,
                 .place_gpus = absl::GetFlag(FLAGS_place_gpus),
                 .peak_flops = settings.peak_flops,
                 .transport = transport,
                 .coordinator = settings.coordinator,
                 .checkpoint_root = absl::GetFlag(FLAGS_checkpoint_root),
                 .paths = settings.paths,
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
                 .programs = programs.get()});
  // The returned pointer owns nothing, because `trace` lives as long as Serve() runs.
  TraceTeller traces(
      [&worker](const std::string& job) {
        return std::shared_ptr<Trace>(std::shared_ptr<void>(), worker.TraceOf(job));
      },
      report_soon);
  FleetClient client({.coordinator = settings.coordinator,
                      .hello = HelloOf(settings, metrics),
                      .refused = StopSignal::Raise,
                      .drained = StopSignal::Raise,
                      .log = &log,
                      .traces = &traces},
                     &worker);
  reporter = &client;
  health->ReadyWhile([&client] { return client.attached(); });
  LOG(INFO) << settings.name << ": " << settings.devices.size() << " devices with "
            << settings.threads_per_device << " threads each, metrics at " << metrics.url();

  const int signal = stop.Await();
  health->Leave();
  const bool refused = !client.refusal().ok();
  LOG(INFO) << settings.name << ": "
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

int Main() {
  if (absl::GetFlag(FLAGS_devices).starts_with("cuda")) SetNcclDefaults();  // before any thread
  const StopSignal stop;  // before the first thread, which inherits the signal mask
  const LogRing log;
  const absl::StatusOr<Settings> settings = SettingsFromFlags();
  const absl::StatusOr<ExitCode> end =
      settings.ok() ? Serve(*settings, stop, log) : settings.status();
  if (end.ok()) return *end;
  LOG(ERROR) << end.status().message();
  return absl::IsInvalidArgument(end.status()) ? kExitConfig : kExitUnavailable;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  const muster::ExitCode parsed = muster::ParseCommandLine(
      argc, argv, "Muster worker: computes gradients on this machine's devices.");
  return parsed == muster::kExitOk ? muster::Main() : parsed;
}
