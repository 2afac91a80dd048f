// A proxy between a client and etcd that can lose, delay or refuse calls, for tests.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/channel.h"
#include "grpcpp/server.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"
#include "proto/third_party/etcd/rpc.grpc.pb.h"

namespace muster {

// Listens on a port of its own on this host. Thread-safe.
class EtcdProxy {
 public:
  explicit EtcdProxy(const std::string& etcd);  // host:port
  ~EtcdProxy();

  const std::string& address() const { return address_; }

  // Handles each later transaction. `pass` forwards it to etcd.
  using Transaction =
      std::function<grpc::Status(const grpc::ServerContext&, const etcdserverpb::TxnRequest&,
                                 absl::FunctionRef<grpc::Status()> pass)>;
  void OnTransaction(Transaction transaction) ABSL_LOCKS_EXCLUDED(mu_);
  // Handles each later lease renewal. OK forwards it to etcd; an error is the answer.
  void OnRenewal(std::function<grpc::Status()> renewal) ABSL_LOCKS_EXCLUDED(mu_);
  // Forwards a transaction to etcd, independent of any call.
  grpc::Status Pass(const etcdserverpb::TxnRequest& request, etcdserverpb::TxnResponse* response);

 private:
  class Keys;
  class Leases;
  class Names;

  const std::shared_ptr<grpc::Channel> etcd_;
  absl::Mutex mu_;
  Transaction transaction_ ABSL_GUARDED_BY(mu_);
  std::function<grpc::Status()> renewal_ ABSL_GUARDED_BY(mu_);
  // The services of `server_`, which does not own them.
  const std::unique_ptr<Keys> keys_;
  const std::unique_ptr<Leases> leases_;
  const std::unique_ptr<Names> names_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace muster
