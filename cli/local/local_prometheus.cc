#include "cli/local/local_prometheus.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "k8s/alerts/alert_rules.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/file/replaced_file.h"
#include "lib/status/status.h"
#include "nlohmann/json.hpp"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kPortWanted = 9090;
constexpr absl::Duration kStartTimeout = absl::Seconds(20);
constexpr absl::Duration kStopGrace = absl::Seconds(10);
constexpr absl::Duration kReadyPollInterval = absl::Milliseconds(20);

// The intervals are short because a local job may end within seconds.
constexpr char kConfig[] = R"(global: {scrape_interval: 2s, evaluation_interval: 5s}
rule_files: [muster.rules.yaml]
scrape_configs:
  - job_name: muster
    honor_labels: true  # "job" is a training job
    file_sd_configs: [{files: [targets.json]}]
)";

absl::StatusOr<std::string> FindInPath(const std::string& program) {
  const char* const path = std::getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    const std::string candidate = absl::StrCat(folder, "/", program);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return absl::NotFoundError(
      absl::StrCat("there is no ", program, " in PATH; on Debian: apt-get ", "install ", program));
}

enum class Use { kBind, kConnect };

// Binds a loopback socket to `port` (0: a free port) or connects it, then closes it. Returns the
// port, or nullopt on failure.
std::optional<int> TryPort(int port, Use use) {
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  const int reuse = 1;  // as Prometheus does: a port closed just now is free
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const bool done =
      use == Use::kBind ? bind(fd, generic, length) == 0 : connect(fd, generic, length) == 0;
  if (done && use == Use::kBind) getsockname(fd, generic, &length);
  close(fd);
  return done ? std::optional<int>(ntohs(address.sin_port)) : std::nullopt;
}

// Returns "127.0.0.1:43121" for "http://127.0.0.1:43121/metrics".
std::string HostAndPort(const std::string& url) {
  const std::vector<std::string> parts = absl::StrSplit(url, '/');
  return parts.size() > 2 ? parts[2] : "";
}

}  // namespace

LocalPrometheus::LocalPrometheus(const std::string& dir)
    : folder_(fs::absolute(dir + "/prometheus").lexically_normal().string()) {}

std::optional<LocalPrometheus::Running> LocalPrometheus::Find() const {
  std::ifstream file(folder_ + "/process.json");
  const auto record =
      nlohmann::json::parse(std::string((std::istreambuf_iterator<char>(file)), {}), nullptr,
                            /*allow_exceptions=*/false);
  if (!record.is_object()) return std::nullopt;
  Running running{.process = {.pid = record.value("pid", 0),
                              .start_ticks = record.value("start_ticks", uint64_t{0})},
                  .url = record.value("url", "")};
  if (!running.process.alive()) return std::nullopt;
  return running;
}

std::optional<std::string> LocalPrometheus::url() const {
  const std::optional<Running> running = Find();
  return running ? std::optional(running->url) : std::nullopt;
}

absl::Status LocalPrometheus::Observe(const LocalCluster& cluster) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) return absl::UnavailableError(absl::StrCat(folder_, ": ", error.message()));
  RETURN_IF_ERROR(WriteTargets(cluster));  // Prometheus rereads the file when it changes
  return Find() ? absl::OkStatus() : Start();
}

absl::Status LocalPrometheus::WriteTargets(const LocalCluster& cluster) const {
  ASSIGN_OR_RETURN(const v1::ListMembersResponse fleet, cluster.ListMembers());
  auto targets = nlohmann::ordered_json::array();
  const auto add = [&targets](const std::string& url, const std::string& name,
                              const std::string& role) {
    targets.push_back(
        {{"targets", {HostAndPort(url)}}, {"labels", {{"instance", name}, {"role", role}}}});
  };
  add(fleet.coordinator_metrics_url(), "coordinator", "coordinator");
  for (const v1::Member& member : fleet.members()) {
    add(member.metrics_url(), member.name(), absl::AsciiStrToLower(v1::Role_Name(member.role())));
  }
  return ReplaceFile(folder_ + "/targets.json", targets.dump(1) + "\n");
}

absl::Status LocalPrometheus::Start() const {
  ASSIGN_OR_RETURN(const std::string program, FindInPath("prometheus"));
  RETURN_IF_ERROR(ReplaceFile(folder_ + "/prometheus.yaml", kConfig));
  RETURN_IF_ERROR(ReplaceFile(folder_ + "/muster.rules.yaml", kAlertRules));
  const std::optional<int> wanted = TryPort(kPortWanted, Use::kBind);
  const std::optional<int> port = wanted ? wanted : TryPort(0, Use::kBind);
  if (!port) return absl::UnavailableError("cannot bind any loopback port for Prometheus");
  const std::string address = absl::StrCat("127.0.0.1:", *port), log = folder_ + "/log";
  ASSIGN_OR_RETURN(
      const Process process,
      StartProcess({.argv = {program, absl::StrCat("--config.file=", folder_, "/prometheus.yaml"),
                             absl::StrCat("--storage.tsdb.path=", folder_, "/data"),
                             "--storage.tsdb.retention.time=1d",
                             absl::StrCat("--web.listen-address=", address), "--log.level=warn"},
                    .log_path = log,
                    .lifetime = Lifetime::kDetached}));
  RETURN_IF_ERROR(ReplaceFile(folder_ + "/process.json",
                              nlohmann::ordered_json({{"pid", process.pid},
                                                      {"start_ticks", process.start_ticks},
                                                      {"url", "http://" + address}})
                                      .dump() +
                                  "\n"));
  const absl::Duration deadline = SteadyNow() + kStartTimeout;
  while (process.alive() && SteadyNow() < deadline) {
    if (TryPort(*port, Use::kConnect)) return absl::OkStatus();
    absl::SleepFor(kReadyPollInterval);
  }
  StopProcesses({process}, kStopGrace);
  return absl::UnavailableError(
      absl::StrCat("Prometheus did not open ", address, "; its log says why: ", log));
}

void LocalPrometheus::Stop() {
  if (const std::optional<Running> running = Find()) {
    StopProcesses({running->process}, kStopGrace);
  }
  std::error_code error;
  fs::remove(folder_ + "/process.json", error);
}

}  // namespace muster::cli
