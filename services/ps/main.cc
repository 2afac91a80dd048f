// The parameter server: holds the parameters of the jobs that the coordinator assigns to it.
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
#include "lib/concurrency/cpu_quota.h"
#include "lib/fleet/channel.h"
#include "lib/fleet/daemon.h"
#include "lib/fleet/departure.h"
#include "lib/fleet/fleet_client.h"
#include "lib/fleet/health_server.h"
#include "lib/fleet/log_ring.h"
#include "lib/fleet/security_flags.h"
#include "lib/fleet/trace_teller.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/log/log_scope.h"
#include "lib/security/identity.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/routing/transport_flags.h"
#include "lib/version/build.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/ps/parameter_server.h"

ABSL_FLAG(std::string, coordinator, "127.0.0.1:7070",
          "host:port of the coordinator; several, separated by commas, if standbys may take over");
ABSL_FLAG(std::string, name, "", "this member's name in the fleet; default ps-<host>-<pid>");
ABSL_FLAG(int, threads, 0, "shard threads; 0: usable cores");
ABSL_FLAG(int64_t, memory_bytes, 0,
          "memory limit of all shards together, in bytes; 0: half of the machine's memory");
ABSL_FLAG(
    absl::Duration, drain_timeout, absl::Seconds(20),
    "how long the process drains after SIGTERM, until its jobs continue without it; at most 15s at "
    "a time while there is no coordinator");
ABSL_FLAG(std::string, checkpoint_root, "",
          "path here of the coordinator's STATE_DIR/jobs, on a shared volume; this member writes "
          "checkpoints of jobs with checkpoint.mode direct below it; empty: it sends them");
ABSL_FLAG(std::string, metrics, "",
          "host:port of /metrics; port 0 picks a free one; default 0.0.0.0:9401 with --tls or "
          "--insecure, else 127.0.0.1:9401");

namespace muster {
namespace {

constexpr int kMetricsPort = 9401;

constexpr absl::Duration kDetachMax = absl::Seconds(5);

v1::Hello HelloOf(const ParameterServer& server, const std::string& name, const Metrics& metrics,
                  const DaemonSecurity& security) {
  v1::Hello hello = Introduce(v1::PS, name);
  server.Describe(hello);
  hello.set_metrics_url(metrics.url());
  hello.set_version(ThisBuild().version);
  hello.set_insecure(security.insecure);
  return hello;
}

int Main() {
  const StopSignal stop;  // before any other thread starts
  const LogRing log;
  std::string name = absl::GetFlag(FLAGS_name);
  if (name.empty()) name = DefaultMemberName(v1::PS);
  if (!IsValidName(name)) {
    LOG(ERROR) << "--name: '" << name << "' is not a valid name";
    return kExitConfig;
  }
  LogScope::SetProcessMember(name);
  int threads = absl::GetFlag(FLAGS_threads);
  if (threads < 0 || threads > limits::kShardThreadsMax) {
    LOG(ERROR) << "--threads: must be in [0, " << limits::kShardThreadsMax << "] (is " << threads
               << ")";
    return kExitConfig;
  }
  if (threads == 0) threads = std::min(UsableCpus(), limits::kShardThreadsMax);
  int64_t memory_bytes = absl::GetFlag(FLAGS_memory_bytes);
  if (memory_bytes < 0) {
    LOG(ERROR) << "--memory_bytes: must not be negative (is " << memory_bytes << ")";
    return kExitConfig;
  }
  if (memory_bytes == 0) memory_bytes = DefaultMemoryBytes();
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
  const absl::StatusOr<CoordinatorTarget> coordinator =
      TargetFor(*security, absl::GetFlag(FLAGS_coordinator));
  if (!coordinator.ok()) {
    LOG(ERROR) << "--coordinator, --tls: " << coordinator.status().message();
    return absl::IsUnavailable(coordinator.status()) ? kExitUnavailable : kExitConfig;
  }
  Metrics metrics(ToLabels(ThisBuild()));
  ExportSecurity(*security, Role::kPs, metrics);
  if (absl::Status served = metrics.Serve(*metrics_address); !served.ok()) {
    LOG(ERROR) << "--metrics: " << served.message();
    return absl::IsInvalidArgument(served) ? kExitConfig : kExitUnavailable;
  }

  const auto health = HealthServerFromFlags("ps");
  if (!health.ok()) {
    LOG(ERROR) << health.status().message();
    return absl::IsInvalidArgument(health.status()) ? kExitConfig : kExitUnavailable;
  }
  const absl::StatusOr<TransportFactory> transport = TransportFromFlags(
      {.pollers = threads}, metrics,
      security->reaches_beyond_host() ? DataReach::kAnywhere : DataReach::kThisHost);
  if (!transport.ok()) {
    LOG(ERROR) << transport.status().message();
    return absl::IsInvalidArgument(transport.status()) ? kExitConfig : kExitUnavailable;
  }

  // null until the client exists: directives may come earlier
  std::atomic<FleetClient*> reporter = nullptr;
  const auto report_soon = [&reporter] {
    if (FleetClient* client = reporter) client->ReportSoon();
  };
  auto server = ParameterServer::Create({.member = name,
                                         .threads = threads,
                                         .memory_bytes = memory_bytes,
                                         .transport = *transport,
                                         .coordinator = *coordinator,
                                         .checkpoint_root = absl::GetFlag(FLAGS_checkpoint_root),
                                         .metrics = &metrics,
                                         .report_soon = report_soon});
  if (!server.ok()) {
    LOG(ERROR) << "cannot open the transport: " << server.status();
    return kExitUnavailable;
  }
  TraceTeller traces([&server](const std::string& job) { return (*server)->TraceOf(job); },
                     report_soon);
  FleetClient client({.coordinator = *coordinator,
                      .hello = HelloOf(**server, name, metrics, *security),
                      .refused = StopSignal::Raise,
                      .drained = StopSignal::Raise,
                      .log = &log,
                      .traces = &traces},
                     server->get());
  reporter = &client;
  (*health)->ReadyWhile([&client] { return client.attached(); });
  LOG(INFO) << name << ": " << threads << " shard threads, " << memory_bytes
            << " bytes for shards, metrics at " << metrics.url();

  const int signal = stop.Await();
  (*health)->Leave();
  const bool refused = !client.refusal().ok();
  LOG(INFO) << name << ": " << (refused ? "refused" : strsignal(signal)) << ", leaving";
  if (!refused) LeaveFleet(client, absl::GetFlag(FLAGS_drain_timeout));
  client.Detach(kDetachMax);
  (*server)->Stop();
  reporter = nullptr;
  return refused ? kExitRefused : kExitOk;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  const muster::ExitCode parsed = muster::ParseCommandLine(
      argc, argv, "Muster parameter server: holds and updates parameters.");
  return parsed == muster::kExitOk ? muster::Main() : parsed;
}
