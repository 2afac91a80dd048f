#include "lib/telemetry/metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/http/http_server.h"
#include "lib/status/status.h"
#include "prometheus/collectable.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace muster {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

double StartTimeSeconds() {
  std::ifstream stat("/proc/self/stat"), system("/proc/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  // Field 22 is the time when the process started, in clock ticks since boot. The command in field
  // 2 may contain spaces, so count after its ")".
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

// Returns the limit of open files; infinite if there is none.
double FileDescriptorsMax() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? std::numeric_limits<double>::infinity()
                                         : static_cast<double>(limit.rlim_cur);
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
        Family("process_max_fds", "Limit of open file descriptors.", MetricType::Gauge,
               FileDescriptorsMax()),
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

}  // namespace

Metrics::Metrics(const MetricLabels& build)
    : registry_(
          std::make_shared<prometheus::Registry>(prometheus::Registry::InsertBehavior::Merge)),
      others_({std::make_shared<ProcessCollector>()}) {
  Gauge("muster_build_info", "1, with the version and build of this program as labels.", build)
      .Set(1);
}

Metrics::~Metrics() = default;

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
  absl::MutexLock lock(&mu_);
  others_.push_back(std::move(others));
}

void Metrics::Remove(const std::string& name, prometheus::Counter& counter) {
  prometheus::BuildCounter().Name(name).Register(*registry_).Remove(&counter);
}

void Metrics::Remove(const std::string& name, prometheus::Gauge& gauge) {
  prometheus::BuildGauge().Name(name).Register(*registry_).Remove(&gauge);
}

void Metrics::Remove(const std::string& name, prometheus::Histogram& histogram) {
  prometheus::BuildHistogram().Name(name).Register(*registry_).Remove(&histogram);
}

std::vector<double> Metrics::DurationBuckets() {
  return {1e-4, 2.5e-4, 6e-4, 1.5e-3, 4e-3, 0.01, 0.025, 0.06,
          0.15, 0.4,    1,    2.5,    10,   60,   300,   1800};
}

absl::Status Metrics::Serve(const std::string& address) {
  // A connection occupies a thread until it has sent its request. Scrapes do so at once; the
  // timeout keeps idle connections from blocking them.
  HttpServer::Options options{.address = address, .threads = 8, .timeout_ms = 3'000};
  auto server = HttpServer::Start(std::move(options), [this](const HttpRequest& request) {
    if (request.path != "/metrics") return HttpResponse{.status = 404};
    return HttpResponse{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                        .body = Render()};
  });
  if (absl::IsInvalidArgument(server.status())) {
    return Annotate(server.status(), "metrics address");
  }
  if (!server.ok()) {
    return WithReason(Annotate(server.status(), "cannot serve metrics"),
                      "METRICS_PORT_UNAVAILABLE");
  }
  server_ = *std::move(server);
  host_ = address.substr(0, address.rfind(':'));
  if (host_ == "0.0.0.0" || host_ == "[::]" || host_.empty()) {
    char name[256] = "localhost";
    gethostname(name, sizeof(name) - 1);
    host_ = name;
  }
  return absl::OkStatus();
}

std::string Metrics::url() const {
  return server_ == nullptr ? "" : absl::StrCat("http://", host_, ":", server_->port(), "/metrics");
}

std::string Metrics::Render() const {
  std::vector<MetricFamily> families = registry_->Collect();
  Collectables others;
  {
    absl::MutexLock lock(&mu_);
    others = others_;
  }
  for (const auto& other : others) {
    for (MetricFamily& family : other->Collect()) families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace muster
