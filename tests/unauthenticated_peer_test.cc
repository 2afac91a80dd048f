// Unauthenticated peers connect to every port while a job trains. No process dies or grows, and no
// bit changes.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/transport/session/session.h"
#include "lib/transport/session/session_handshake.h"
#include "tests/listeners.h"
#include "tests/metrics_page.h"
#include "tests/session_recorder.h"
#include "tests/training_cluster.h"

namespace muster::unauthenticated_peer_test {
namespace {

constexpr uint64_t kSeed = 20261123;

// Returns a cluster whose links use TCP, although all processes are on this machine.
cli::LocalCluster::Options ClusterOf(DataSecurity security) {
  const std::vector<std::string> links = {"--transport=tcp",
                                          absl::StrCat("--data_security=", NameOf(security))};
  return {.ps = 1, .workers = 1, .ps_threads = 1, .ps_flags = links, .worker_flags = links};
}

std::string JobOf(int steps) {
  return absl::StrCat(R"(
name: besieged
model: {zoo: {name: gpt, args: {layers: 1, heads: 2, channels: 32, context: 32}}}
data: {text: {path: examples/data/licences}, batch_size: 8}
training: {optimizer: {adamw: {learning_rate: 0.001}}, steps: )",
                      steps, "}\n");
}

// Returns the number of attacks: few in CI. docs/testing.md has the command for a hundred thousand.
int Connections() {
  int connections = 2000;
  if (const char* wanted = std::getenv("STRANGERS")) {
    EXPECT_TRUE(absl::SimpleAtoi(wanted, &connections)) << "STRANGERS=" << wanted;
  }
  return connections;
}

int64_t ResidentKilobytes(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "VmRSS:")) return std::atoll(line.c_str() + 6);
  }
  return -1;
}

int64_t Descriptors(pid_t pid) {
  const std::filesystem::directory_iterator folder(absl::StrCat("/proc/", pid, "/fd"));
  return std::distance(begin(folder), end(folder));
}

// The bytes that an honest peer sent to a data port, starting with its hello.
struct Recording {
  sockaddr_in port;  // the port that received them
  std::string bytes;
};

// Returns a connector that claims to be rank 0 of one of the first jobs. An attacker could guess
// that, but not the session token.
HandshakeConnector ConnectorOf(uint64_t job, DataSecurity security) {
  return HandshakeConnector({.who = {.job = job, .generation = 1}}, SessionToken::Random(),
                            security);
}

std::string HelloOf(uint64_t job, DataSecurity security) {
  HandshakeConnector connector = ConnectorOf(job, security);
  const auto hello = connector.TakeReply();
  return std::string(reinterpret_cast<const char*>(hello.data()), hello.size());
}

// Selects complete sessions. Other ports use other protocols. Our own rejected handshakes end
// before the first frame.
std::vector<Recording> ReadRecordings(const std::string& folder, DataSecurity security) {
  const std::string prologue = HelloOf(1, security).substr(0, SessionHandshake::kPrologueBytes);
  std::vector<Recording> recordings;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(file), {});
    if (!absl::StartsWith(bytes, prologue) || bytes.size() < 1024) continue;
    sockaddr_in port{.sin_family = AF_INET};
    port.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    port.sin_port = htons(std::atoi(entry.path().filename().c_str()));
    recordings.push_back({port, std::move(bytes)});
  }
  return recordings;
}

class Siege {
 public:
  Siege(std::vector<sockaddr_in> ports, DataSecurity security)
      : ports_(std::move(ports)), security_(security), random_(kSeed) {
    for (const sockaddr_in& port : ports_) {
      // The timeout is short, because ports of other protocols may not answer a hello.
      const int fd = ConnectTo(port, /*seconds=*/1);
      if (fd >= 0 && WholeHandshakeWithAnotherToken(fd)) data_ports_.push_back(port);
      close(fd);
    }
  }
  ~Siege() { LiftHeld(); }

  // Makes the next attack; the kinds take turns. Returns false if no process accepts. Requires: the
  // recordings are set.
  bool Knock() {
    const int64_t kind = knocks_++ % 11;
    // Only data ports answer a hello. At other ports the test would wait for the timeout.
    const std::vector<sockaddr_in>& ports = kind == 4 ? data_ports_ : ports_;
    const int fd = ConnectTo(ports[random_() % ports.size()]);
    if (fd < 0) return false;
    switch (kind) {
      case 0:
        SendAll(fd, RandomBytes(1 + random_() % 4096));
        break;
      case 1:  // UCX's magic number, and bytes like the request that once ended a ps
        SendAll(fd, std::string("\x78\x56\x34\x12\xbe\xba\xfe\xca", 8) + RandomBytes(29));
        break;
      case 2:  // the beginning of a TLS client hello
        SendAll(fd,
                std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + RandomBytes(500));
        break;
      case 3:  // the preface of HTTP/2
        SendAll(fd, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + RandomBytes(100));
        break;
      case 4:
        EXPECT_TRUE(WholeHandshakeWithAnotherToken(fd));
        break;
      case 5:
        SendAll(fd, MutatedHello());
        break;
      case 6:  // never sends all of it
        SendAll(fd, HelloOf(1 + random_() % 3, security_).substr(0, random_() % 96));
        held_.push_back(fd);
        if (held_.size() > 200) {
          close(held_.front());
          held_.erase(held_.begin());
        }
        return true;
      case 7:  // byte by byte, one more with each of these attacks
        dripping_.push_back(fd);
        for (const int slow : dripping_) SendAll(slow, RandomBytes(1));
        if (dripping_.size() > 20) {
          close(dripping_.front());
          dripping_.erase(dripping_.begin());
        }
        return true;
      case 8:
        SendAll(fd, recordings_[random_() % recordings_.size()].bytes);
        break;
      case 9:
        SendAll(fd, MutatedRecording());
        break;
      case 10:
        SendAll(fd, CutRecording());
        break;
    }
    close(fd);
    return true;
  }

  // Sets the sessions that Knock() replays.
  void set_recordings(std::vector<Recording> recordings) { recordings_ = std::move(recordings); }

  // Replays a session at its port and expects no answer beyond a handshake's: the proof is for
  // another nonce, so the port rejects it. Returns false if no process accepts.
  bool Replay(const Recording& recording) {
    const int fd = ConnectTo(recording.port);
    if (fd < 0) return false;
    SendAll(fd, recording.bytes);
    std::array<char, 256> heard;
    size_t bytes = 0;
    ssize_t size = 0;
    while ((size = recv(fd, heard.data(), heard.size(), 0)) > 0) bytes += size;
    EXPECT_TRUE(size == 0 || errno == ECONNRESET)
        << "the port did not close the connection: " << std::strerror(errno);
    EXPECT_LE(bytes, SessionHandshake::kChallengeBytes + SessionHandshake::kVerdictBytes);
    close(fd);
    return true;
  }

  int data_ports() const { return static_cast<int>(data_ports_.size()); }

  void LiftHeld() {
    for (std::vector<int>* fds : {&held_, &dripping_}) {
      for (const int fd : *fds) close(fd);
      fds->clear();
    }
  }

 private:
  std::string RandomBytes(size_t size) {
    std::string bytes(size, 0);
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }

  std::string MutatedHello() {
    std::string hello = HelloOf(1 + random_() % 3, security_);
    hello[random_() % hello.size()] ^= static_cast<char>(1 + random_() % 255);
    return hello + RandomBytes(random_() % 100);
  }

  // Flips a few bits of a recording, in the handshake or after it.
  std::string MutatedRecording() {
    std::string bytes = recordings_[random_() % recordings_.size()].bytes;
    constexpr size_t kHandshake = SessionHandshake::kHelloBytes + SessionHandshake::kProofBytes;
    const size_t within = random_() % 2 == 0 ? kHandshake : bytes.size();
    for (int flips = 1 + random_() % 8; flips > 0; --flips) {
      bytes[random_() % within] ^= static_cast<char>(1 << random_() % 8);
    }
    return bytes;
  }

  std::string CutRecording() {
    const std::string& bytes = recordings_[random_() % recordings_.size()].bytes;
    return bytes.substr(0, random_() % (random_() % 2 == 0 ? 256 : bytes.size()));
  }

  // Makes a complete handshake with a wrong token, which must be rejected. Returns whether the data
  // port answered with the rejection.
  bool WholeHandshakeWithAnotherToken(int fd) {
    HandshakeConnector connector = ConnectorOf(1 + random_() % 3, security_);
    while (connector.fault().ok()) {
      const auto reply = connector.TakeReply();
      SendAll(fd, std::string(reinterpret_cast<const char*>(reply.data()), reply.size()));
      if (connector.wants() == 0) break;
      std::array<std::byte, 256> bytes;
      const ssize_t size = recv(fd, bytes.data(), std::min(bytes.size(), connector.wants()), 0);
      if (size <= 0) return false;
      connector.Take(absl::MakeConstSpan(bytes).first(size));
    }
    EXPECT_FALSE(connector.let_in());
    return absl::IsPermissionDenied(connector.fault());
  }

  const std::vector<sockaddr_in> ports_;
  const DataSecurity security_;
  std::vector<sockaddr_in> data_ports_;
  std::mt19937_64 random_;
  int64_t knocks_ = 0;
  std::vector<int> held_, dripping_;
  std::vector<Recording> recordings_;
};

// Members that start during its lifetime record the bytes that they receive.
class Recorder {
 public:
  explicit Recorder(DataSecurity security)
      : security_(security), folder_(::testing::TempDir() + "/recordings") {
    std::filesystem::create_directory(folder_);
    const std::string library =
        absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"),
                     "/tests/libsession_recorder.so");
    EXPECT_EQ(access(library.c_str(), R_OK), 0) << library;
    setenv(kRecordingsVariable, folder_.c_str(), 1);
    setenv("LD_PRELOAD", library.c_str(), 1);
  }
  ~Recorder() {
    unsetenv("LD_PRELOAD");
    std::error_code error;
    std::filesystem::remove_all(taken_, error);
  }

  // Waits for this many recordings while `job` trains, then stops the recording.
  std::vector<Recording> Take(TrainingCluster& cluster, const std::string& job, int sessions) {
    std::vector<Recording> recordings;
    do {
      recordings = ReadRecordings(folder_, security_);
    } while (std::ssize(recordings) < sessions && cluster.Get(job).state() == v1::RUNNING);
    // Renames the folder first, because a recorder could add a file to a folder that is being
    // emptied.
    std::filesystem::rename(folder_, taken_);
    return recordings;
  }

 private:
  const DataSecurity security_;
  const std::string folder_;
  const std::string taken_ = folder_ + ".taken";
};

// Returns the number of attacks of this kind that all members have counted.
double UnauthenticatedPeers(TrainingCluster& cluster, absl::string_view reason) {
  double unauthenticated_peers = 0;
  for (const auto& [member, url] : MetricsUrls(cluster)) {
    unauthenticated_peers +=
        MetricTotal(ScrapeMetrics(url),
                    absl::StrCat("muster_data_port_strangers_total{reason=\"", reason, "\"}"));
  }
  return unauthenticated_peers;
}

// Replays the recordings and checks how members count the rejections. All bytes are valid except
// the proof, which answers another nonce. A recording that is cut before the proof counts as
// "hung_up".
void ExpectReplaysAreTurnedAway(TrainingCluster& cluster, Siege& siege,
                                const std::vector<Recording>& recordings) {
  constexpr int kTimes = 20;
  const double not_proven = UnauthenticatedPeers(cluster, "not_proven");
  const double hung_up = UnauthenticatedPeers(cluster, "hung_up");
  for (int i = 0; i < kTimes; ++i) {
    for (const Recording& recording : recordings) EXPECT_TRUE(siege.Replay(recording));
  }
  EXPECT_GE(UnauthenticatedPeers(cluster, "not_proven"),
            not_proven + kTimes * std::ssize(recordings));
  for (const Recording& recording : recordings) {
    const std::string cut = recording.bytes.substr(0, SessionHandshake::kHelloBytes + 7);
    for (int i = 0; i < kTimes; ++i) EXPECT_TRUE(SendBytes(recording.port, cut));
  }
  const absl::Time patience = absl::Now() + absl::Seconds(10);
  while (UnauthenticatedPeers(cluster, "hung_up") < hung_up + kTimes && absl::Now() < patience) {
  }
  EXPECT_GE(UnauthenticatedPeers(cluster, "hung_up"), hung_up + kTimes);
}

// If all processes are on this machine, as under `muster local` and `muster run`, no port of any
// role can be reached from another host.
TEST(UnauthenticatedPeerTest, ALocalClusterListensOnLoopbackAlone) {
  TrainingCluster cluster({.ps = 1, .workers = 1});
  const std::vector<std::string> names = cluster.members().names();
  EXPECT_EQ(names, std::vector<std::string>({"coordinator", "ps-0", "worker-0"}));
  for (const std::string& name : names) {
    const pid_t pid = cluster.members().pid(name);
    EXPECT_GE(Listeners(pid).size(), 2) << name << ": metrics, and gRPC or the job's data";
    EXPECT_THAT(ListenersBeyondLoopback(pid), testing::IsEmpty()) << name;
  }
}

class BesiegedJobTest : public testing::TestWithParam<DataSecurity> {};

TEST_P(BesiegedJobTest, TrainsToTheSameBitsAndNothingGrows) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  const int connections = Connections();
  const int steps = std::max(2000, connections / 2);
  Recorder recorder(GetParam());
  TrainingCluster cluster(ClusterOf(GetParam()));
  const std::string undisturbed = cluster.Run(JobOf(steps));
  std::map<std::string, pid_t> pids;
  std::map<std::string, int64_t> resident, descriptors;
  std::vector<sockaddr_in> ports;
  for (const std::string& name : cluster.members().names()) {
    const pid_t pid = cluster.members().pid(name);
    pids[name] = pid;
    resident[name] = ResidentKilobytes(pid);
    descriptors[name] = Descriptors(pid);
    const std::vector<sockaddr_in> listeners = Listeners(pid);
    EXPECT_GE(listeners.size(), 2) << name << ": metrics, and gRPC or the job's data";
    ports.insert(ports.end(), listeners.begin(), listeners.end());
  }

  Siege siege(ports, GetParam());
  EXPECT_EQ(siege.data_ports(), 2) << "one of the ps, one of the worker";
  const std::string job = cluster.Submit(JobOf(steps));
  cluster.AwaitState(job, v1::RUNNING);
  const absl::Time begin = absl::Now();
  const std::vector<Recording> recordings = recorder.Take(cluster, job, /*sessions=*/2);
  ASSERT_EQ(recordings.size(), 2) << "of the undisturbed run and of this one";
  siege.set_recordings(recordings);
  ExpectReplaysAreTurnedAway(cluster, siege, recordings);
  int refused = 0;
  int knocks = 0, during_training = 0;
  for (bool trains = true; knocks < connections || trains; ++knocks) {
    if (knocks % 50 == 0) trains = cluster.Get(job).state() == v1::RUNNING;
    refused += !siege.Knock();
    during_training += trains;
  }
  const absl::Duration took = absl::Now() - begin;
  EXPECT_LT(refused, knocks / 100);
  EXPECT_GE(during_training, connections / 8);
  // The held connections are still open when an honest peer connects.
  cluster.AwaitState(job, v1::SUCCEEDED);
  cluster.Run(JobOf(20));
  siege.LiftHeld();

  EXPECT_EQ(cluster.Hashes(job, steps), cluster.Hashes(undisturbed, steps));
  for (const auto& [name, pid] : pids) {
    SCOPED_TRACE(name);
    EXPECT_EQ(cluster.members().pid(name), pid);
    // A process may take 16 MiB at its first attacks, and 2 KiB for each attack on any of the
    // processes.
    EXPECT_LT(ResidentKilobytes(pid), resident[name] + (16 << 10) + 2 * knocks);
    // The last connections are gone after their limit of 5 s.
    const absl::Time patience = absl::Now() + absl::Seconds(20);
    while (Descriptors(pid) > descriptors[name] + 8 && absl::Now() < patience) {
      cluster.Get(job);
    }
    EXPECT_LE(Descriptors(pid), descriptors[name] + 8);
  }
  // Each member logs at most one line a second about them.
  for (const std::string& name : {std::string("ps-0"), std::string("worker-0")}) {
    std::ifstream log(absl::StrCat(cluster.state_dir(), "/../logs/", name, ".log"));
    int lines = 0;
    for (std::string line; std::getline(log, line);) lines += absl::StrContains(line, "data port");
    EXPECT_GE(lines, 1) << name;
    EXPECT_LE(lines, absl::ToInt64Seconds(took) + 30) << name;
  }
}

// A recording of an encrypted session ends in records that cannot be decrypted again.
INSTANTIATE_TEST_SUITE_P(Security, BesiegedJobTest,
                         testing::Values(DataSecurity::kAuth, DataSecurity::kEncrypt),
                         [](const auto& security) { return std::string(NameOf(security.param)); });

}  // namespace
}  // namespace muster::unauthenticated_peer_test
