#include "lib/telemetry/metrics.h"

#include <dirent.h>
#include <netdb.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/status/status.h"
#include "lib/version/version.h"
#include "prometheus/collectable.h"
#include "prometheus/exposer.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace muster {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

double StartTimeSeconds() {
  std::ifstream stat("/proc/self/stat"), system("/proc/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  // Field 22, in clock ticks since boot; the command in field 2 may hold spaces, so count behind
  // its ")".
  std::vector<std::string> fields = absl::StrSplit(text.substr(text.rfind(')') + 2), ' ');
  double ticks = 0, boot = 0;
  if (fields.size() > 19) (void)absl::SimpleAtod(fields[19], &ticks);
  for (std::string line; std::getline(system, line);) {
    if (absl::StartsWith(line, "btime ")) (void)absl::SimpleAtod(line.substr(6), &boot);
  }
  return boot + ticks / sysconf(_SC_CLK_TCK);
}

double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  double total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

double CountEntries(const char* directory) {
  DIR* handle = opendir(directory);
  if (handle == nullptr) return 0;
  int count = -2;  // "." and ".."
  while (readdir(handle) != nullptr) ++count;
  closedir(handle);
  return std::max(count, 0);
}

// The process_* metrics that every Prometheus client exports but prometheus-cpp does not.
class ProcessCollector : public prometheus::Collectable {
 public:
  std::vector<MetricFamily> Collect() const override {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const double cpu = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
                       1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    return {
        Family("process_cpu_seconds_total", "User and system time.", MetricType::Counter, cpu),
        Family("process_resident_memory_bytes", "Resident set size.", MetricType::Gauge,
               ResidentBytes()),
        Family("process_open_fds", "Open file descriptors.", MetricType::Gauge,
               CountEntries("/proc/self/fd")),
        Family("process_threads", "Threads.", MetricType::Gauge, CountEntries("/proc/self/task")),
        Family("process_start_time_seconds", "Start time since the Unix epoch.", MetricType::Gauge,
               start_time_),
    };
  }

 private:
  static MetricFamily Family(const char* name, const char* help, MetricType type, double value) {
    prometheus::ClientMetric metric;
    metric.gauge.value = value;
    metric.counter.value = value;
    return {name, help, type, {metric}};
  }

  const double start_time_ = StartTimeSeconds();
};

// Connects to a port of this machine and hangs up; whether anybody answers is no matter.
void Knock(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) return;
  const int socket_fd =
      socket(found->ai_family, found->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket_fd >= 0) {
    connect(socket_fd, found->ai_addr, found->ai_addrlen);
    pollfd ready{.fd = socket_fd, .events = POLLOUT};
    poll(&ready, 1, /*timeout=*/20);
    close(socket_fd);
  }
  freeaddrinfo(found);
}

void Expose(prometheus::Exposer& exposer,
            const std::shared_ptr<const prometheus::Collectable>& collectable) {
  // It is only asked to Collect(), which is const.
  exposer.RegisterCollectable(std::const_pointer_cast<prometheus::Collectable>(collectable));
}

}  // namespace

Metrics::Metrics()
    : registry_(
          std::make_shared<prometheus::Registry>(prometheus::Registry::InsertBehavior::Merge)),
      others_({std::make_shared<ProcessCollector>()}) {
  Gauge("muster_build_info", "1, with the version as a label.", {{"version", Version()}}).Set(1);
}

// The HTTP library's listener sees that it is to end when somebody connects, or after two seconds:
// a process that stops would wait for them. So somebody connects, until it has seen it.
Metrics::~Metrics() {
  if (exposer_ == nullptr) return;
  const std::vector<int> ports = exposer_->GetListeningPorts();
  std::atomic<bool> ended = false;
  std::thread visitor([&] {
    while (!ended && !ports.empty()) {
      Knock(bound_host_, ports.front());
      poll(nullptr, 0, /*timeout=*/2);
    }
  });
  exposer_.reset();
  ended = true;
  visitor.join();
}

prometheus::Counter& Metrics::Counter(const std::string& name, const std::string& help,
                                      const MetricLabels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry_).Add(labels);
}

prometheus::Gauge& Metrics::Gauge(const std::string& name, const std::string& help,
                                  const MetricLabels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(*registry_).Add(labels);
}

prometheus::Histogram& Metrics::Histogram(const std::string& name, const std::string& help,
                                          const MetricLabels& labels,
                                          const std::vector<double>& buckets) {
  return prometheus::BuildHistogram()
      .Name(name)
      .Help(help)
      .Register(*registry_)
      .Add(labels, buckets);
}

void Metrics::Add(std::shared_ptr<const prometheus::Collectable> others) {
  if (exposer_ != nullptr) Expose(*exposer_, others);
  others_.push_back(std::move(others));
}

void Metrics::RemoveGauge(const std::string& name, prometheus::Gauge& gauge) {
  prometheus::BuildGauge().Name(name).Register(*registry_).Remove(&gauge);
}

std::vector<double> Metrics::DurationBuckets() {
  return {1e-4, 2.5e-4, 6e-4, 1.5e-3, 4e-3, 0.01, 0.025, 0.06, 0.15, 0.4, 1, 2.5, 10, 60};
}

absl::Status Metrics::Serve(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics address '", address, "' is not host:port"));
  }
  try {
    exposer_ = std::make_unique<prometheus::Exposer>(address, /*num_threads=*/2);
  } catch (const std::exception& error) {
    return WithReason(
        absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address, ": ", error.what(),
                                            "; is another process using the port?")),
        "METRICS_PORT_UNAVAILABLE");
  }
  exposer_->RegisterCollectable(registry_);
  for (const auto& other : others_) Expose(*exposer_, other);
  host_ = address.substr(0, colon);
  // As the resolver takes it: without the brackets of an IPv6 address.
  bound_host_ = std::string(absl::StripSuffix(absl::StripPrefix(host_, "["), "]"));
  if (bound_host_ == "0.0.0.0" || bound_host_.empty()) bound_host_ = "127.0.0.1";
  if (bound_host_ == "::") bound_host_ = "::1";
  if (host_ == "0.0.0.0" || host_ == "[::]" || host_.empty()) {
    char name[256] = "localhost";
    gethostname(name, sizeof(name) - 1);
    host_ = name;
  }
  return absl::OkStatus();
}

std::string Metrics::url() const {
  if (exposer_ == nullptr || exposer_->GetListeningPorts().empty()) return "";
  return absl::StrCat("http://", host_, ":", exposer_->GetListeningPorts().front(), "/metrics");
}

std::string Metrics::Render() const {
  std::vector<MetricFamily> families = registry_->Collect();
  for (const auto& other : others_) {
    for (MetricFamily& family : other->Collect()) families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace muster
