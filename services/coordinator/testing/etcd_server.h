// An etcd server for tests.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

namespace muster {

// Listens on a port of its own on this host, and keeps its data in a folder of its own. Dies with
// the thread that started it.
class EtcdServer {
 public:
  // Returns null if etcd is not installed; then a test must skip. `tls`: a folder as in TlsFolder
  // with etcd's certificate; clients must have a certificate of the same authority. "": plaintext.
  static std::unique_ptr<EtcdServer> Start(const std::string& tls = "");
  ~EtcdServer();  // kill -9

  const std::string& address() const { return address_; }  // 127.0.0.1:port

  void Kill();     // kill -9; blocks until the process has ended
  void Restart();  // Requires Kill(). Keeps the port and the data. Blocks until the server listens.
  void Send(int signal) const;

 private:
  EtcdServer(std::string folder, std::string tls);
  bool Run();

  const std::string folder_;
  const std::string tls_;
  int port_ = 0;
  std::string address_;
  pid_t pid_ = -1;
};

}  // namespace muster
