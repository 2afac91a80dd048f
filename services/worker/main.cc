// The worker: computes gradients for the jobs that the coordinator gives it.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "lib/cluster/fleet_client.h"
#include "lib/cluster/resource_name.h"
#include "lib/concurrency/cpu_quota.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/transport.h"
#include "lib/transport/ucx_transport.h"
#include "services/worker/worker.h"

ABSL_FLAG(std::string, coordinator, "127.0.0.1:7070", "host:port of the coordinator");
ABSL_FLAG(std::string, name, "", "this member's name in the fleet; default worker-<host>-<pid>");
ABSL_FLAG(std::string, devices, "cpu", "what to compute on: cpu, or cpu:N for N CPU devices");
ABSL_FLAG(int, threads_per_device, 0,
          "threads of the math libraries on a CPU device; 0: usable cores / devices");
ABSL_FLAG(std::string, metrics, "0.0.0.0:9402", "host:port of /metrics; port 0 picks a free one");

namespace muster {
namespace {

constexpr int kExitUnavailable = 69;
constexpr int kExitConfig = 78;
constexpr absl::Duration kFinishStepMax = absl::Seconds(20);  // Kubernetes kills after 30 s
constexpr absl::Duration kDetachMax = absl::Seconds(5);

std::string Host() {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  return host;
}

// A valid name whatever the host is called.
std::string DefaultName() {
  std::string host = Host().substr(0, 24);
  std::ranges::transform(host, host.begin(), [](unsigned char c) {
    return absl::ascii_isalnum(c) ? absl::ascii_tolower(c) : '-';
  });
  return absl::StrCat("worker-", host, "-", getpid());
}

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport() { return UcxTransport::Create(); }

v1::Hello HelloOf(const std::string& name, const std::vector<std::string>& devices,
                  const Metrics& metrics) {
  v1::Hello hello;
  hello.set_member(name);
  hello.set_role(v1::WORKER);
  hello.set_incarnation(absl::StrCat(absl::GetCurrentTimeNanos(), "-", getpid()));
  hello.set_host(Host());
  hello.set_pid(getpid());
  hello.mutable_devices()->Add(devices.begin(), devices.end());
  hello.set_metrics_url(metrics.url());
  hello.set_version(BuildVersion());
  hello.set_transport("ucx");
  return hello;
}

int Main() {
  // Before the first thread: all inherit the mask, and only sigwait() below sees the signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  std::string name = absl::GetFlag(FLAGS_name);
  if (name.empty()) name = DefaultName();
  if (!IsValidName(name)) {
    LOG(ERROR) << "--name: '" << name << "' is no valid name";
    return kExitConfig;
  }
  const auto devices = ParseDevices(absl::GetFlag(FLAGS_devices));
  if (!devices.ok()) {
    LOG(ERROR) << "--devices: " << devices.status().message();
    return kExitConfig;
  }
  int threads = absl::GetFlag(FLAGS_threads_per_device);
  if (threads < 0) {
    LOG(ERROR) << "--threads_per_device: must not be negative (is " << threads << ")";
    return kExitConfig;
  }
  if (threads == 0) threads = std::max(1, UsableCpus() / static_cast<int>(devices->size()));

  Metrics metrics;
  if (absl::Status served = metrics.Serve(absl::GetFlag(FLAGS_metrics)); !served.ok()) {
    LOG(ERROR) << "--metrics: " << served.message();
    return kExitUnavailable;
  }

  std::atomic<FleetClient*> reporter = nullptr;  // directives may come before it is set
  Worker worker({.member = name,
                 .devices = *devices,
                 .threads_per_device = threads,
                 .transport = MakeTransport,
                 .metrics = &metrics,
                 .report_soon = [&reporter] {
                   if (FleetClient* client = reporter) client->ReportSoon();
                 }});
  FleetClient client(
      {.coordinator = absl::GetFlag(FLAGS_coordinator), .hello = HelloOf(name, *devices, metrics)},
      &worker);
  reporter = &client;
  LOG(INFO) << name << ": " << devices->size() << " devices with " << threads
            << " threads each, metrics at " << metrics.url();

  int signal = 0;
  sigwait(&signals, &signal);
  LOG(INFO) << name << ": " << strsignal(signal) << ", finishing the step";
  worker.FinishStep(kFinishStepMax);
  client.Detach(kDetachMax);
  reporter = nullptr;
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  absl::SetProgramUsageMessage("Muster worker: computes gradients on this machine's devices.");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    LOG(ERROR) << "unexpected argument '" << rest[1] << "'";
    return muster::kExitConfig;
  }
  return muster::Main();
}
