// Calls of etcd: which of its servers, how long, with whose name, and what its errors mean here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "proto/third_party/etcd/rpc.pb.h"

namespace grpc {
class ChannelCredentials;
}

namespace muster {

// Thread-safe; calls block. A call goes to the server that answered last. One that does not answer
// within a moment, or cannot answer, is passed over for the next, until one does or the time is up;
// the moment is twice as long in every further round. So every call may have been made more than
// once, also after a later one, and each of them must bear that.
//
// Errors: UNAVAILABLE (reason "STORE_UNREACHABLE"): nobody answered in time, whatever became of the
// call; RESOURCE_EXHAUSTED ("STORE_FULL"): etcd's space is used up; PERMISSION_DENIED
// ("STORE_UNWRITABLE"): it does not know us, or we may not; else INTERNAL ("STORE_FAILED").
class EtcdClient {
 public:
  struct Options {
    std::vector<std::string> servers;  // host:port; at least one
    // Folder of ca.crt and, where etcd asks for them, tls.crt and tls.key, as TlsFolder has them,
    // but of etcd's authority; read again when they change. "": plaintext.
    std::string tls;
    std::string user;           // "": without a name
    std::string password_file;  // only with `user`; read whenever etcd asks for the name anew
    absl::Duration try_max = absl::Seconds(1);  // for one server, in the first round
  };
  // UNAVAILABLE (reason "CERTIFICATE_FILES"): a file of `tls` is missing.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Create(Options options);

  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request,
                                                    absl::Duration timeout);
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request,
                                                absl::Duration timeout);
  // Rounded up to seconds; etcd may give more.
  absl::StatusOr<etcdserverpb::LeaseGrantResponse> Grant(absl::Duration time_to_live,
                                                         absl::Duration timeout);
  // The time that the lease has from the moment when this was called. NOT_FOUND: it has ended.
  absl::StatusOr<absl::Duration> KeepAlive(int64_t lease, absl::Duration timeout);
  absl::Status Revoke(int64_t lease, absl::Duration timeout);

  // "a:2379,b:2379"
  const std::string& servers() const { return names_; }

 private:
  using Attempt =
      absl::FunctionRef<grpc::Status(const std::shared_ptr<grpc::Channel>&, grpc::ClientContext&)>;

  EtcdClient(Options options, const std::shared_ptr<grpc::ChannelCredentials>& credentials);

  absl::Status Call(absl::string_view what, absl::Duration timeout, Attempt attempt)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Pause(grpc::Channel& channel) ABSL_LOCKS_EXCLUDED(mu_);  // between attempts
  grpc::Status Authenticate(const std::shared_ptr<grpc::Channel>& channel, absl::Duration timeout);

  const Options options_;
  const std::string names_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  absl::Mutex mu_;
  size_t server_ ABSL_GUARDED_BY(mu_) = 0;     // that answered last
  std::string token_ ABSL_GUARDED_BY(mu_);     // etcd's, for `user`; "": none yet
  bool closing_ ABSL_GUARDED_BY(mu_) = false;  // never: what a pause between attempts waits for
};

// The first key behind all that begin with `prefix`, for etcd's ranges.
std::string BehindPrefix(std::string prefix);

}  // namespace muster
