// Floods every port of the control plane while a job trains. The job must reach the same bits, and
// no process may grow beyond the limits here.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "lib/fleet/channel.h"
#include "lib/limits/limits.h"
#include "lib/listener/hostile_client.h"
#include "lib/security/identity.h"
#include "lib/status/grpc_status.h"
#include "proto/muster/v1/coordinator.grpc.pb.h"
#include "tests/certificates.h"
#include "tests/listeners.h"
#include "tests/training_cluster.h"

namespace muster::siege_test {
namespace {

// Descriptors that a process may have. The number is low, so that floods reach the coordinator's
// connection limit: a third of the descriptors above 512.
constexpr rlim_t kDescriptorsMax = 2048;
constexpr int64_t kConnectionsMax = (kDescriptorsMax - 512) / 3;
// Connections that one attacker holds open.
constexpr int kHeldAtCoordinator = 700;
constexpr int kHeldElsewhere = 64;

// Members and honest clients use 127.0.0.1.
constexpr char kUnauthenticatedPeers[] = "127.0.0.2";

// The limits.
constexpr int64_t kCoordinatorKilobytesMax = 512 << 10;
constexpr int64_t kMemberKilobytesMore = 64 << 10;  // than before the floods
constexpr int64_t kCoordinatorThreadsMax = limits::kServerThreadsMax + 64;
constexpr int64_t kMemberThreadsMore = 32;
constexpr int64_t kCoordinatorDescriptorsMore = 3 * kConnectionsMax + 2 * kHeldElsewhere + 128;
constexpr int64_t kMemberDescriptorsMore = 4 * kHeldElsewhere + 128;

// Returns the number of steps of the job: few in CI. docs/testing.md has the command for more.
int Steps() {
  int steps = 1500;
  if (const char* wanted = std::getenv("SIEGE_STEPS")) {
    EXPECT_TRUE(absl::SimpleAtoi(wanted, &steps)) << "SIEGE_STEPS=" << wanted;
  }
  return steps;
}

std::string JobOf(int steps) {
  return absl::StrCat(R"(
name: flooded
model: {zoo: {name: gpt, args: {layers: 1, heads: 2, channels: 32, context: 32}}}
data: {text: {path: examples/data/licences}, batch_size: 8}
checkpoint: {every_steps: 500}
training: {optimizer: {adamw: {learning_rate: 0.001}}, steps: )",
                      steps, "}\n");
}

// Peak memory, threads and descriptors of a process.
struct Use {
  int64_t peak_kilobytes = 0, threads = 0, descriptors = 0;
};

Use UseOf(pid_t pid) {
  Use use;
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "VmHWM:")) use.peak_kilobytes = std::atoll(line.c_str() + 6);
    if (absl::StartsWith(line, "Threads:")) use.threads = std::atoll(line.c_str() + 8);
  }
  const std::filesystem::directory_iterator folder(absl::StrCat("/proc/", pid, "/fd"));
  use.descriptors = std::distance(begin(folder), end(folder));
  return use;
}

int64_t Lines(const std::string& path) {
  std::ifstream file(path);
  return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
}

// Sends `said` to the port and returns the first bytes of the answer.
std::string FirstBytes(const sockaddr_in& port, const std::string& said) {
  const int fd = ConnectTo(port, /*seconds=*/1);
  if (fd < 0) return "";
  SendAll(fd, said);
  char heard[9];  // a frame's header
  const ssize_t bytes = recv(fd, heard, sizeof(heard), MSG_WAITALL);
  close(fd);
  return {heard, static_cast<size_t>(std::max<ssize_t>(bytes, 0))};
}

bool SpeaksHttp2(const sockaddr_in& port) {
  const std::string settings("\0\0\0\4\0\0\0\0\0", 9);
  const std::string answer = FirstBytes(port, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings);
  return answer.size() == 9 && answer[3] == 4;
}

bool SpeaksHttp1(const sockaddr_in& port) {
  return absl::StartsWith(FirstBytes(port, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "HTTP/1.");
}

// The security of the control plane. In plaintext every byte of an attacker reaches gRPC. With TLS
// no attacker has a valid certificate.
enum class ControlPlane { kPlaintext, kTls };

class SiegeTest : public ::testing::TestWithParam<ControlPlane> {
 protected:
  SiegeTest() {
    const rlimit few = {.rlim_cur = kDescriptorsMax, .rlim_max = kDescriptorsMax};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const auto flags = [this](Role role) {
      std::vector<std::string> all = {"--health=127.0.0.1:0"};
      if (role != Role::kCoordinator) all.push_back("--transport=tcp");
      if (has_tls()) all.push_back(certificates_.Flag(role));
      return all;
    };
    ClientSecurity ours;
    if (has_tls()) ours.tls = certificates_.Folder(Role::kAdmin).path;
    cluster_ = std::make_unique<TrainingCluster>(
        cli::LocalCluster::Options{.ps = 1,
                                   .workers = 1,
                                   .ps_threads = 1,
                                   .coordinator_flags = flags(Role::kCoordinator),
                                   .ps_flags = flags(Role::kPs),
                                   .worker_flags = flags(Role::kWorker),
                                   .security = ours});
    names_ = cluster_->members().names();
  }
  static bool has_tls() { return GetParam() == ControlPlane::kTls; }

  std::string AddressOf(const sockaddr_in& port) const {
    return absl::StrCat("127.0.0.1:", ntohs(port.sin_port));
  }
  std::map<std::string, Use> UseOfAll() const {
    std::map<std::string, Use> use;
    for (const std::string& name : names_) use[name] = UseOf(cluster_->members().pid(name));
    return use;
  }
  std::map<std::string, int64_t> LinesOfAll() const {
    std::map<std::string, int64_t> lines;
    for (const std::string& name : names_) lines[name] = Lines(cluster_->members().log_path(name));
    return lines;
  }
  // Starts the attacks. Each kind runs at the coordinator's gRPC port all the time. At every other
  // port of the control plane the kinds take turns.
  void BeginSiege() {
    const std::string front = cluster_->members().address();
    int http2 = 0, http1 = 0;
    std::vector<std::string> others;
    for (const std::string& name : names_) {
      for (const sockaddr_in& port : Listeners(cluster_->members().pid(name))) {
        const bool is_http2 = SpeaksHttp2(port);
        if (!is_http2 && !SpeaksHttp1(port)) continue;  // a port of the data plane
        (is_http2 ? http2 : http1) += 1;
        if (AddressOf(port) != front) others.push_back(AddressOf(port));
      }
    }
    EXPECT_EQ(http2, has_tls() ? 3 : 4) << "health of everybody, and the coordinator's services";
    EXPECT_GE(http1, 3) << "metrics of everybody, and the status page";
    for (const Attack attack : HostileClient::kAttacks) {
      attackers_.push_back(std::make_unique<HostileClient>(
          HostileClient::Options{.address = front,
                                 .attacks = {attack},
                                 .held_connections = kHeldAtCoordinator,
                                 .source = kUnauthenticatedPeers}));
    }
    const std::vector<Attack> all(HostileClient::kAttacks.begin(), HostileClient::kAttacks.end());
    for (const std::string& address : others) {
      attackers_.push_back(
          std::make_unique<HostileClient>(HostileClient::Options{.address = address,
                                                                 .attacks = all,
                                                                 .held_connections = kHeldElsewhere,
                                                                 .source = kUnauthenticatedPeers}));
    }
  }
  int64_t Strokes(Attack attack) const {
    int64_t strokes = 0;
    for (const auto& attacker : attackers_) strokes += attacker->strokes(attack);
    return strokes;
  }
  // Lists the members as an honest client that connects during all attacks.
  absl::Status ComeIn() const {
    const auto fleet = v1::FleetService::NewStub(DialCoordinator(cluster_->members().target()));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    context.set_wait_for_ready(true);
    v1::ListMembersResponse members;
    const absl::Status status = FromGrpc(fleet->ListMembers(&context, {}, &members));
    EXPECT_EQ(members.members_size(), 2);
    return status;
  }

  Certificates certificates_;
  std::unique_ptr<TrainingCluster> cluster_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<HostileClient>> attackers_;
};

TEST_P(SiegeTest, AJobTrainsToTheSameBitsWhileItsControlPlaneIsFlooded) {
  const int steps = Steps();
  const int64_t before_any = LinesOfAll()["coordinator"];
  const std::string undisturbed = cluster_->Run(JobOf(steps));
  const int64_t lines_of_a_job = LinesOfAll()["coordinator"] - before_any;
  const std::map<std::string, Use> before = UseOfAll();
  std::map<std::string, pid_t> pids;
  for (const std::string& name : names_) pids[name] = cluster_->members().pid(name);

  const std::string job = cluster_->Submit(JobOf(steps));
  cluster_->AwaitState(job, v1::RUNNING);
  std::map<std::string, int64_t> lines = LinesOfAll();
  const absl::Time begin = absl::Now();
  BeginSiege();
  std::map<std::string, Use> most = before;
  const auto has_ended = [&](const v1::Job& seen) {
    for (const auto& [name, use] : UseOfAll()) {
      most[name].threads = std::max(most[name].threads, use.threads);
      most[name].descriptors = std::max(most[name].descriptors, use.descriptors);
    }
    return seen.state() == v1::SUCCEEDED;
  };
  const v1::Job done = cluster_->Await(job, has_ended, absl::Minutes(10));
  const absl::Status came_in = ComeIn();
  const absl::Duration took = absl::Now() - begin;
  for (const Attack attack : HostileClient::kAttacks) {
    const int64_t strokes = Strokes(attack);
    EXPECT_GT(strokes, 0) << HostileClient::NameOf(attack);
    printf("%8ld %s\n", static_cast<long>(strokes),
           std::string(HostileClient::NameOf(attack)).c_str());
  }
  attackers_.clear();

  EXPECT_TRUE(came_in.ok()) << came_in;
  EXPECT_EQ(done.recovery().count(), 0);
  EXPECT_EQ(cluster_->Hashes(job, steps), cluster_->Hashes(undisturbed, steps));
  for (const std::string& name : names_) {
    SCOPED_TRACE(name);
    EXPECT_EQ(cluster_->members().pid(name), pids[name]);
    const bool leads = name == "coordinator";
    const Use &was = before.at(name), &had = most.at(name);
    const int64_t peak = UseOf(pids[name]).peak_kilobytes;
    EXPECT_LT(peak, leads ? kCoordinatorKilobytesMax : was.peak_kilobytes + kMemberKilobytesMore);
    EXPECT_LT(had.threads, leads ? kCoordinatorThreadsMax : was.threads + kMemberThreadsMore);
    EXPECT_LT(had.descriptors,
              was.descriptors + (leads ? kCoordinatorDescriptorsMore : kMemberDescriptorsMore));
    // Each gRPC port may log a line a second about attacks. The coordinator has two such ports.
    const int64_t more = LinesOfAll()[name] - lines[name];
    EXPECT_LE(more, absl::ToInt64Seconds(took) * (leads ? 2 : 1) + lines_of_a_job + 10);
    printf("%s: at most %ld KiB, %ld threads, %ld descriptors; %ld lines in %s\n", name.c_str(),
           static_cast<long>(peak), static_cast<long>(had.threads),
           static_cast<long>(had.descriptors), static_cast<long>(more),
           absl::FormatDuration(took).c_str());
    // The connections of the attackers must all be closed within half a minute.
    const absl::Time patience = absl::Now() + absl::Seconds(30);
    while (UseOf(pids[name]).descriptors > was.descriptors + 8 && absl::Now() < patience) {
      cluster_->Get(job);
    }
    EXPECT_LE(UseOf(pids[name]).descriptors, was.descriptors + 8);
  }
}

INSTANTIATE_TEST_SUITE_P(ControlPlanes, SiegeTest,
                         ::testing::Values(ControlPlane::kPlaintext, ControlPlane::kTls),
                         [](const auto& of) {
                           return of.param == ControlPlane::kTls ? "Tls" : "Plaintext";
                         });

}  // namespace
}  // namespace muster::siege_test
