#include "cli/local/local_cluster.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "grpcpp/client_context.h"
#include "lib/concurrency/cpu_quota.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/file/replaced_file.h"
#include "lib/fleet/channel.h"
#include "lib/program/program_path.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"
#include "nlohmann/json.hpp"
#include "proto/muster/v1/coordinator.grpc.pb.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kStatePollInterval = absl::Milliseconds(20);
// A member that serves no job ends within this time of SIGTERM.
constexpr absl::Duration kLeaveMax = absl::Seconds(2);
constexpr int kLogTailLines = 12;
constexpr int kFoldersAbove = 4;  // enough to reach bazel-bin from bazel-bin/a/b/c/d/x_test

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string RecordPath(const std::string& dir) { return dir + "/cluster.json"; }

std::string AddressPath(const std::string& dir) { return dir + "/coordinator.address"; }

std::string PagePath(const std::string& dir) { return dir + "/page.address"; }

std::string PortFlag(const char* name) { return absl::StrCat("--", name, "=127.0.0.1:0"); }

// The port of a URL such as "http://127.0.0.1:40121"; 0 if `page` has none.
int PortOf(const std::string& page) {
  int port = 0;
  return absl::SimpleAtoi(page.substr(page.rfind(':') + 1), &port) ? port : 0;
}

// The port that the status page had before, if nothing listens there now; else 0, a free one.
int PagePort(const std::string& page) {
  const int port = PortOf(page);
  if (port == 0) return 0;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  // With SO_REUSEADDR, a port whose connections are in TIME_WAIT counts as free.
  const int reuse = 1;
  setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  const bool is_free =
      bind(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(probe);
  return is_free ? port : 0;
}

// Polls until `done` is true. Returns false if it is not within `timeout`.
bool Poll(absl::Duration timeout, const std::function<bool()>& done) {
  const absl::Duration deadline = SteadyNow() + timeout;
  while (!done()) {
    if (SteadyNow() >= deadline) return false;
    absl::SleepFor(kStatePollInterval);
  }
  return true;
}

}  // namespace

absl::StatusOr<std::string> FindBinary(const std::string& role) {
  std::vector<fs::path> folders;
  if (const char* folder = std::getenv("MUSTER_BIN_DIR")) folders.emplace_back(folder);
  const char* runfiles = std::getenv("TEST_SRCDIR");
  const char* workspace = std::getenv("TEST_WORKSPACE");
  if (runfiles != nullptr && workspace != nullptr) {
    folders.push_back(fs::path(runfiles) / workspace);
  }
  std::error_code error;
  fs::path folder = fs::path(ProgramPath()).parent_path();
  for (int above = 0; above <= kFoldersAbove && !folder.empty(); ++above) {
    folders.push_back(folder);
    folder = folder.parent_path();
  }
  std::vector<std::string> tried;
  for (const fs::path& candidate : folders) {
    for (const fs::path& path : {candidate / role, candidate / "services" / role / "main"}) {
      if (fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0) return path.string();
    }
    tried.push_back(candidate.string());
  }
  return absl::NotFoundError(absl::StrCat(
      "cannot find the ", role, " binary in ", absl::StrJoin(tried, ", "),
      "; build it (bazel build //:coordinator //:ps //:worker) or set MUSTER_BIN_DIR"));
}

std::string DefaultLocalDir() {
  const char* home = std::getenv("HOME");
  return absl::StrCat(home == nullptr ? "." : home, "/.muster/local");
}

std::string LocalCommand(const std::string& verb, const std::string& dir) {
  auto normal = [](const std::string& path) { return fs::absolute(path).lexically_normal(); };
  const bool is_default = normal(dir) == normal(DefaultLocalDir());
  return absl::StrCat("muster local ", verb, is_default ? "" : absl::StrCat(" --dir ", dir));
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(const Options& options) {
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(options));
  const absl::Status status = cluster->StartAll();
  if (!status.ok()) {
    cluster->Shutdown();
    return status;
  }
  return cluster;
}

LocalCluster::~LocalCluster() {
  if (options_.lifetime == Lifetime::kWithParent) Shutdown();
}

absl::Status LocalCluster::StartAll() {
  std::error_code error;
  fs::create_directories(options_.dir + "/logs", error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat(options_.dir, ": cannot make the folder: ", error.message()));
  }
  options_.dir = fs::absolute(options_.dir).lexically_normal().string();
  directory_ = fs::current_path(error).string();
  if (options_.accept_programs) RETURN_IF_ERROR(MakeSocketFolder());
  ASSIGN_OR_RETURN(const std::string coordinator, FindBinary("coordinator"));
  ASSIGN_OR_RETURN(const std::string ps, FindBinary("ps"));
  ASSIGN_OR_RETURN(const std::string worker, FindBinary("worker"));
  LOG(INFO) << "binaries: " << coordinator << " " << ps << " " << worker;

  const int cores = UsableCpus();
  const int ps_threads =
      options_.ps_threads > 0 ? options_.ps_threads : std::max(1, cores / std::max(1, options_.ps));
  // One core stays free for ps and communication. The threads of the math library spin while they
  // wait for each other, so one preempted thread stalls all of them.
  const int worker_threads = options_.threads_per_device > 0
                                 ? options_.threads_per_device
                                 : std::max(1, (cores - 1) / std::max(1, options_.workers));
  std::vector<std::string>& argv = members_["coordinator"].argv;
  argv = {coordinator,
          PortFlag("listen"),
          PortFlag("metrics"),
          absl::StrCat("--http=127.0.0.1:", PagePort(page())),
          absl::StrCat("--http_file=", PagePath(options_.dir)),
          absl::StrCat("--state_dir=", options_.dir, "/state"),
          absl::StrCat("--address_file=", AddressPath(options_.dir)),
          "--data_visible=true",
          absl::StrCat("--lease=", absl::FormatDuration(options_.lease))};
  // Only the coordinator of a detached cluster saves its running jobs before it ends.
  if (options_.lifetime == Lifetime::kWithParent) argv.push_back("--drain_timeout=0s");
  argv.insert(argv.end(), options_.coordinator_flags.begin(), options_.coordinator_flags.end());
  RETURN_IF_ERROR(StartCoordinator());
  argv[1] = absl::StrCat("--listen=", address());  // a restarted coordinator keeps its port
  argv[3] = absl::StrCat("--http=127.0.0.1:", PortOf(page()));  // for open browser tabs
  auto add = [&](const std::string& name, std::vector<std::string> argv,
                 const std::vector<std::string>& extra) {
    argv.push_back(absl::StrCat("--coordinator=", address()));
    argv.push_back(absl::StrCat("--name=", name));
    argv.push_back(PortFlag("metrics"));
    argv.push_back(PortFlag("data_port"));
    argv.push_back(absl::StrCat("--checkpoint_root=", options_.dir, "/state/jobs"));
    argv.insert(argv.end(), extra.begin(), extra.end());
    members_[name].argv = std::move(argv);
    return Launch(name);
  };
  for (int i = 0; i < options_.ps; ++i) {
    RETURN_IF_ERROR(add(absl::StrCat("ps-", i), {ps, absl::StrCat("--threads=", ps_threads)},
                        options_.ps_flags));
  }
  for (int i = 0; i < options_.workers; ++i) {
    const std::string name = absl::StrCat("worker-", i);
    std::vector<std::string> argv = {worker, absl::StrCat("--devices=", options_.devices),
                                     absl::StrCat("--threads_per_device=", worker_threads)};
    if (options_.accept_programs) {
      argv.push_back(absl::StrCat("--program_socket=", program_socket(name)));
    } else if (options_.lifetime == Lifetime::kWithParent) {
      // Such clusters run side by side, and their workers would want one socket.
      argv.push_back("--program_socket=none");
    }
    RETURN_IF_ERROR(add(name, std::move(argv), options_.worker_flags));
  }
  // The record is complete before the wait: an interrupted wait leaves a cluster that Heal() can
  // repair.
  whole_ = true;
  if (options_.lifetime == Lifetime::kDetached) RETURN_IF_ERROR(SaveRecord());
  return AwaitAttached(options_.start_timeout);
}

absl::Status LocalCluster::StartCoordinator() {
  const std::string address_file = AddressPath(options_.dir);
  std::error_code error;
  // A file of an earlier start would be taken for the new address.
  fs::remove(address_file, error);
  RETURN_IF_ERROR(Launch("coordinator"));
  std::string address;
  const bool bound = Poll(options_.start_timeout, [&] {
    address = std::string(absl::StripAsciiWhitespace(ReadFile(address_file)));
    return !address.empty() || !running("coordinator");
  });
  if (!bound || address.empty()) {
    return absl::UnavailableError(
        absl::StrCat("the coordinator did not open its port:\n", LogTail("coordinator")));
  }
  ASSIGN_OR_RETURN(target_, SecureTarget(address, options_.security));
  return absl::OkStatus();
}

absl::Status LocalCluster::Launch(const std::string& name) {
  MemberProcess& member = members_.at(name);
  ASSIGN_OR_RETURN(member.process, StartProcess({.argv = member.argv,
                                                 .log_path = log_path(name),
                                                 .directory = directory_,
                                                 .lifetime = options_.lifetime}));
  if (options_.lifetime != Lifetime::kDetached) return absl::OkStatus();
  const absl::Status saved = SaveRecord();
  if (!saved.ok()) StopProcesses({member.process}, kLeaveMax);  // without a record it would be lost
  return saved;
}

std::string LocalCluster::page() const {
  return std::string(absl::StripAsciiWhitespace(ReadFile(PagePath(options_.dir))));
}

std::vector<std::string> LocalCluster::names() const {
  std::vector<std::string> names;  // map order: "coordinator" < "ps-" < "worker-"
  for (const auto& [name, member] : members_) names.push_back(name);
  return names;
}

pid_t LocalCluster::pid(const std::string& name) const {
  auto member = members_.find(name);
  return member != members_.end() && member->second.process.alive() ? member->second.process.pid
                                                                    : 0;
}

bool LocalCluster::any_running() const {
  return std::ranges::any_of(members_,
                             [](const auto& member) { return member.second.process.alive(); });
}

std::string LocalCluster::log_path(const std::string& name) const {
  return absl::StrCat(options_.dir, "/logs/", name, ".log");
}

std::string LocalCluster::LogTail(const std::string& name) const {
  std::vector<std::string> lines =
      absl::StrSplit(ReadFile(log_path(name)), '\n', absl::SkipEmpty());
  if (lines.size() > kLogTailLines) lines.erase(lines.begin(), lines.end() - kLogTailLines);
  return absl::StrCat(log_path(name), ":\n  ", absl::StrJoin(lines, "\n  "));
}

std::string LocalCluster::program_socket(const std::string& worker) const {
  return absl::StrCat(socket_dir_, "/", worker, ".sock");
}

absl::Status LocalCluster::MakeSocketFolder() {
  constexpr size_t kPathMax = sizeof(sockaddr_un::sun_path) - 1;
  std::error_code error;
  socket_dir_ = options_.dir + "/sockets";
  if (program_socket(absl::StrCat("worker-", options_.workers)).size() <= kPathMax) {
    fs::create_directories(socket_dir_, error);
    if (!error) fs::permissions(socket_dir_, fs::perms::owner_all, error);
  } else {
    socket_dir_ = "/tmp/muster-XXXXXX";
    if (mkdtemp(socket_dir_.data()) == nullptr) error.assign(errno, std::generic_category());
  }
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(socket_dir_, ": cannot make the folder: ", error.message()));
}

absl::Status LocalCluster::Kill(const std::string& name, int signal) {
  if (!running(name)) {
    return absl::FailedPreconditionError(absl::StrCat(name, " does not run"));
  }
  kill(members_.at(name).process.pid, signal);
  return signal == SIGKILL ? AwaitExit(name, absl::InfiniteDuration()) : absl::OkStatus();
}

absl::Status LocalCluster::AwaitExit(const std::string& name, absl::Duration timeout) {
  Process& process = members_.at(name).process;
  RETURN_IF_ERROR(Annotate(cli::AwaitExit({process}, timeout), name));
  process = {};
  return absl::OkStatus();
}

absl::Status LocalCluster::Restart(const std::string& name) {
  if (members_.count(name) == 0) {
    return absl::NotFoundError(absl::StrCat("no member '", name, "'"));
  }
  if (running(name)) RETURN_IF_ERROR(Kill(name, SIGKILL));
  return name == "coordinator" ? StartCoordinator() : Launch(name);
}

absl::StatusOr<std::vector<LocalCluster::Revival>> LocalCluster::Heal() {
  std::vector<Revival> revivals;
  for (auto& [name, member] : members_) {
    if (member.process.alive()) continue;
    Revival& revival = revivals.emplace_back();
    revival = {.name = name, .before = member.process.pid, .end = DescribeEnd(member.process)};
    // Reaps the ended child. DescribeEnd() must come first, because it reads the exit status.
    RETURN_IF_ERROR(cli::AwaitExit({member.process}, absl::ZeroDuration()));
    const absl::Status restarted = Restart(name);
    if (!WasKilled(member.process)) RETURN_IF_ERROR(restarted);
    revival.pid = member.process.pid;
  }
  return revivals;
}

absl::StatusOr<v1::ListMembersResponse> LocalCluster::ListMembers() const {
  auto stub = v1::FleetService::NewStub(DialCoordinator(target_));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(5)));
  v1::ListMembersResponse response;
  RETURN_IF_ERROR(FromGrpc(stub->ListMembers(&context, {}, &response)));
  return response;
}

absl::Status LocalCluster::AwaitAttached(absl::Duration timeout) const {
  std::set<std::string> missing;
  std::string ended;
  const bool done = Poll(timeout, [&] {
    missing.clear();
    for (const auto& [name, member] : members_) {
      if (member.process.pid == 0) continue;
      if (!member.process.alive()) ended = name;
      if (name != "coordinator") missing.insert(name);
    }
    if (auto fleet = ListMembers(); fleet.ok()) {
      for (const v1::Member& member : fleet->members()) {
        // The pid must match, because an earlier process of that name may still be attached.
        if (member.pid() == pid(member.name())) missing.erase(member.name());
      }
    }
    return missing.empty() || !ended.empty();
  });
  if (!ended.empty()) {
    return absl::UnavailableError(absl::StrCat(ended, " ended:\n", LogTail(ended)));
  }
  if (!done) {
    return absl::UnavailableError(absl::StrCat(absl::StrJoin(missing, ", "),
                                               " did not attach to the coordinator at ", address(),
                                               ":\n", LogTail(*missing.begin())));
  }
  return absl::OkStatus();
}

void LocalCluster::Shutdown(absl::Duration grace) {
  std::vector<Process> members;
  for (const auto& [name, member] : members_) {
    if (name != "coordinator") members.push_back(member.process);
  }
  // The coordinator ends first. Otherwise a member that drains would wait for its jobs to continue
  // elsewhere. Without a coordinator, members that serve a job wait for it to return; the second
  // SIGTERM, from StopProcesses(), ends them at once.
  if (members_.count("coordinator") > 0) {
    StopProcesses({members_["coordinator"].process}, grace);
  }
  for (const Process& member : members) {
    if (member.alive()) kill(member.pid, SIGTERM);
  }
  if (!cli::AwaitExit(members, kLeaveMax).ok()) StopProcesses(members, grace);
  std::error_code error;
  if (!socket_dir_.empty()) fs::remove_all(socket_dir_, error);
  // A cluster that is not detached has no record: a file there belongs to another cluster.
  if (options_.lifetime != Lifetime::kDetached) return;
  fs::remove(RecordPath(options_.dir), error);
}

// ---------------------------------------------------------------- detached clusters

absl::Status LocalCluster::SaveRecord() const {
  nlohmann::ordered_json record = {{"address", address()},
                                   {"directory", directory_},
                                   {"devices", options_.devices},
                                   {"threads_per_device", options_.threads_per_device},
                                   {"whole", whole_},
                                   {"members", nlohmann::ordered_json::array()}};
  for (const auto& [name, member] : members_) {
    record["members"].push_back({{"name", name},
                                 {"pid", member.process.pid},
                                 {"start_ticks", member.process.start_ticks},
                                 {"argv", member.argv}});
  }
  const absl::Status written = ReplaceFile(RecordPath(options_.dir), record.dump(2) + "\n");
  if (written.ok()) return written;
  return absl::ResourceExhaustedError(
      absl::StrCat(written.message(), "; it is the record of the cluster. Is the disk full?"));
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Open(const std::string& dir) {
  const std::string path = RecordPath(dir);
  std::error_code error;
  if (!fs::exists(path, error)) {
    return absl::NotFoundError(
        absl::StrCat("no local cluster in ", dir, "; ", LocalCommand("up", dir), " starts one"));
  }
  std::unique_ptr<LocalCluster> cluster(
      new LocalCluster({.dir = fs::absolute(dir).lexically_normal().string(),
                        .ps = 0,
                        .workers = 0,
                        .lifetime = Lifetime::kDetached}));
  try {
    const auto record = nlohmann::json::parse(ReadFile(path));
    cluster->target_ = record.at("address").get<std::string>();
    cluster->directory_ = record.at("directory").get<std::string>();
    cluster->options_.devices = record.at("devices").get<std::string>();
    cluster->options_.threads_per_device = record.value("threads_per_device", 0);
    cluster->whole_ = record.value("whole", true);
    for (const auto& member : record.at("members")) {
      const auto name = member.at("name").get<std::string>();
      cluster->members_[name] = {
          .argv = member.at("argv").get<std::vector<std::string>>(),
          .process = {.pid = member.at("pid").get<pid_t>(),
                      .start_ticks = member.at("start_ticks").get<uint64_t>()}};
      if (absl::StartsWith(name, "ps-")) ++cluster->options_.ps;
      if (absl::StartsWith(name, "worker-")) ++cluster->options_.workers;
    }
  } catch (const nlohmann::json::exception& damaged) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", damaged.what(),
                     "; end the processes that still run by hand, then remove the file"));
  }
  return cluster;
}

bool IsLocalCluster(const v1::ServerInfo& info) {
  const fs::path state = info.state_dir();  // LocalCluster gives its coordinator an absolute path
  if (!state.is_absolute() || state.filename() != "state") return false;
  const auto cluster = LocalCluster::Open(state.parent_path().string());
  return cluster.ok() && (*cluster)->running("coordinator");
}

}  // namespace muster::cli
