// A server of etcd, for tests.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

namespace muster {

// On a port of its own of this host, with its data in a folder of its own. Dies with the thread
// that started it.
class EtcdServer {
 public:
  // Null: etcd is not installed here; a test that needs it skips then. `tls`: a folder as TlsFolder
  // has it, with etcd's own certificate; clients must show one of the same authority. "":
  // plaintext.
  static std::unique_ptr<EtcdServer> Start(const std::string& tls = "");
  ~EtcdServer();  // kill -9

  const std::string& address() const { return address_; }  // 127.0.0.1:port

  void Kill();     // -9, and waits for its end
  void Restart();  // after Kill(), with the same port and data; waits until it listens
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
