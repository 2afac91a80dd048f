#include "services/coordinator/testing/etcd_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <glog/logging.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/security/tls_folder.h"

namespace muster {
namespace {

constexpr char kProgram[] = "/usr/bin/etcd";
constexpr int kPolls = 1000;
constexpr int kPollMs = 10;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// Returns a port that is free now. etcd does not accept port 0.
int FreePort() {
  const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  CHECK_EQ(bind(file, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  socklen_t length = sizeof(address);
  CHECK_EQ(getsockname(file, reinterpret_cast<sockaddr*>(&address), &length), 0);
  close(file);
  return ntohs(address.sin_port);
}

bool Listens(int port) {
  const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  const bool connected =
      connect(file, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(file);
  return connected;
}

}  // namespace

std::unique_ptr<EtcdServer> EtcdServer::Start(const std::string& tls) {
  if (access(kProgram, X_OK) != 0) return nullptr;
  std::string folder = ::testing::TempDir() + "/etcd-XXXXXX";
  CHECK(mkdtemp(folder.data()) != nullptr);
  std::unique_ptr<EtcdServer> server(new EtcdServer(folder, tls));
  for (int attempt = 0; attempt < 5; ++attempt) {  // another process may take the port first
    server->port_ = FreePort();
    server->address_ = absl::StrCat("127.0.0.1:", server->port_);
    if (server->Run()) return server;
  }
  LOG(FATAL) << "etcd does not start: see " << folder << "/log";
}

EtcdServer::EtcdServer(std::string folder, std::string tls)
    : folder_(std::move(folder)), tls_(std::move(tls)) {}

EtcdServer::~EtcdServer() { Kill(); }

bool EtcdServer::Run() {
  const std::string url = absl::StrCat(tls_.empty() ? "http://" : "https://", address_);
  // The socket for other etcd servers, of which there are none, is a file in the folder. Fast
  // heartbeats make the server ready at once and allow leases of one second.
  std::vector<std::string> words = {"etcd",
                                    "--data-dir=data",
                                    "--listen-client-urls=" + url,
                                    "--advertise-client-urls=" + url,
                                    "--listen-peer-urls=unix://peers:0",
                                    "--initial-advertise-peer-urls=unix://peers:0",
                                    "--initial-cluster=default=unix://peers:0",
                                    "--heartbeat-interval=20",
                                    "--election-timeout=200",
                                    "--log-outputs=stderr",
                                    "--logger=zap"};
  if (!tls_.empty()) {
    const TlsFolder folder{tls_};
    // The gateway would call etcd with a certificate that is only valid for servers.
    for (const std::string& word :
         {"--cert-file=" + folder.certificate(), "--key-file=" + folder.key(),
          "--trusted-ca-file=" + folder.authority(), std::string("--client-cert-auth"),
          std::string("--enable-grpc-gateway=false")}) {
      words.push_back(word);
    }
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (chdir(folder_.c_str()) != 0) _exit(126);
    unlink("peers:0");
    const int log = open("log", O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execv(kProgram, arguments.data());
    _exit(127);
  }
  for (int i = 0; i < kPolls; ++i) {
    if (Listens(port_)) return true;
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) break;
    poll(nullptr, 0, kPollMs);
  }
  pid_ = -1;
  return false;
}

void EtcdServer::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void EtcdServer::Restart() {
  CHECK_LT(pid_, 0) << "it runs";
  CHECK(Run()) << "etcd does not start again: see " << folder_ << "/log";
}

void EtcdServer::Send(int signal) const { CHECK_EQ(kill(pid_, signal), 0); }

}  // namespace muster
