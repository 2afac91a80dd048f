#include "services/coordinator/testing/etcd_proxy.h"

#include <glog/logging.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/sync_stream.h"

namespace muster {

namespace etcd = ::etcdserverpb;

class EtcdProxy::Keys final : public etcd::KV::Service {
 public:
  explicit Keys(EtcdProxy* proxy) : proxy_(*proxy) {}

  grpc::Status Range(grpc::ServerContext* /*context*/, const etcd::RangeRequest* request,
                     etcd::RangeResponse* response) override {
    grpc::ClientContext context;
    return etcd::KV::NewStub(proxy_.etcd_)->Range(&context, *request, response);
  }
  grpc::Status Txn(grpc::ServerContext* context, const etcd::TxnRequest* request,
                   etcd::TxnResponse* response) override {
    Transaction transaction;
    {
      absl::MutexLock lock(&proxy_.mu_);
      transaction = proxy_.transaction_;
    }
    auto pass = [&] { return proxy_.Pass(*request, response); };
    return transaction ? transaction(*context, *request, pass) : pass();
  }

 private:
  EtcdProxy& proxy_;
};

class EtcdProxy::Leases final : public etcd::Lease::Service {
 public:
  explicit Leases(EtcdProxy* proxy) : proxy_(*proxy) {}

  grpc::Status LeaseGrant(grpc::ServerContext* /*context*/, const etcd::LeaseGrantRequest* request,
                          etcd::LeaseGrantResponse* response) override {
    grpc::ClientContext context;
    return etcd::Lease::NewStub(proxy_.etcd_)->LeaseGrant(&context, *request, response);
  }
  grpc::Status LeaseRevoke(grpc::ServerContext* /*context*/,
                           const etcd::LeaseRevokeRequest* request,
                           etcd::LeaseRevokeResponse* response) override {
    grpc::ClientContext context;
    return etcd::Lease::NewStub(proxy_.etcd_)->LeaseRevoke(&context, *request, response);
  }
  grpc::Status LeaseKeepAlive(
      grpc::ServerContext* /*context*/,
      grpc::ServerReaderWriter<etcd::LeaseKeepAliveResponse, etcd::LeaseKeepAliveRequest>* stream)
      override {
    etcd::LeaseKeepAliveRequest request;
    while (stream->Read(&request)) {
      std::function<grpc::Status()> renewal;
      {
        absl::MutexLock lock(&proxy_.mu_);
        renewal = proxy_.renewal_;
      }
      if (renewal) {
        if (const grpc::Status status = renewal(); !status.ok()) return status;
      }
      grpc::ClientContext context;
      const auto behind = etcd::Lease::NewStub(proxy_.etcd_)->LeaseKeepAlive(&context);
      etcd::LeaseKeepAliveResponse response;
      if (!behind->Write(request) || !behind->Read(&response)) return behind->Finish();
      context.TryCancel();
      behind->Finish();
      stream->Write(response);
    }
    return grpc::Status::OK;
  }

 private:
  EtcdProxy& proxy_;
};

// Authenticates every user, with a new token each time.
class EtcdProxy::Names final : public etcd::Auth::Service {
 public:
  grpc::Status Authenticate(grpc::ServerContext* /*context*/,
                            const etcd::AuthenticateRequest* /*request*/,
                            etcd::AuthenticateResponse* response) override {
    response->set_token(absl::StrCat("token-", ++given_));
    return grpc::Status::OK;
  }

 private:
  std::atomic<int> given_ = 0;
};

EtcdProxy::EtcdProxy(const std::string& etcd)
    : etcd_(grpc::CreateChannel(etcd, grpc::InsecureChannelCredentials())),
      keys_(std::make_unique<Keys>(this)),
      leases_(std::make_unique<Leases>(this)),
      names_(std::make_unique<Names>()) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(keys_.get());
  builder.RegisterService(leases_.get());
  builder.RegisterService(names_.get());
  server_ = builder.BuildAndStart();
  CHECK(server_ != nullptr);
  address_ = absl::StrCat("127.0.0.1:", port);
}

EtcdProxy::~EtcdProxy() { server_->Shutdown(std::chrono::system_clock::now()); }

void EtcdProxy::OnTransaction(Transaction transaction) {
  absl::MutexLock lock(&mu_);
  transaction_ = std::move(transaction);
}

void EtcdProxy::OnRenewal(std::function<grpc::Status()> renewal) {
  absl::MutexLock lock(&mu_);
  renewal_ = std::move(renewal);
}

grpc::Status EtcdProxy::Pass(const etcd::TxnRequest& request, etcd::TxnResponse* response) {
  grpc::ClientContext context;
  return etcd::KV::NewStub(etcd_)->Txn(&context, request, response);
}

}  // namespace muster
