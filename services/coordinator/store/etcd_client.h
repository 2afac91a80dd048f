// A client of etcd: chooses a server, authenticates, retries, and translates errors.
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

// Calls go to the server that answered last. If that server is slow or fails, the call goes to the
// next one, until a server answers or the timeout passes. The time limit for one server doubles in
// every further round. So etcd may execute a call more than once, even after a later call. Every
// call must tolerate that.
//
// Returns UNAVAILABLE (reason "STORE_UNREACHABLE") if no server answered in time; the call may have
// been executed. Returns RESOURCE_EXHAUSTED ("STORE_FULL") if etcd's space is used up.
// Returns PERMISSION_DENIED ("STORE_UNWRITABLE") if etcd rejects our user or its rights.
// Returns INTERNAL ("STORE_FAILED") otherwise.
//
// Thread-safe. Calls block.
class EtcdClient {
 public:
  struct Options {
    std::vector<std::string> servers;  // host:port; at least one
    // Folder with ca.crt of etcd's authority and, if etcd asks for them, tls.crt and tls.key. The
    // files are named as in TlsFolder and are read again when they change. "": plaintext.
    std::string tls;
    std::string user;                           // "": no authentication
    std::string password_file;                  // Requires `user`. Read at every authentication.
    absl::Duration try_max = absl::Seconds(1);  // for one server, in the first round
  };
  // Returns UNAVAILABLE (reason "CERTIFICATE_FILES") if a file of `tls` is missing.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Create(Options options);

  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request,
                                                    absl::Duration timeout);
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request,
                                                absl::Duration timeout);
  // Grants a lease. `time_to_live` is rounded up to seconds; etcd may grant more.
  absl::StatusOr<etcdserverpb::LeaseGrantResponse> Grant(absl::Duration time_to_live,
                                                         absl::Duration timeout);
  // Returns how long the lease lasts from the moment of this call. Returns NOT_FOUND if it has
  // ended.
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
  void Pause(grpc::Channel& channel) ABSL_LOCKS_EXCLUDED(mu_);  // between rounds of attempts
  grpc::Status Authenticate(const std::shared_ptr<grpc::Channel>& channel, absl::Duration timeout);

  const Options options_;
  const std::string names_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  absl::Mutex mu_;
  size_t server_ ABSL_GUARDED_BY(mu_) = 0;     // the server that answered last
  std::string token_ ABSL_GUARDED_BY(mu_);     // etcd's token for `user`; "": none yet
  bool closing_ ABSL_GUARDED_BY(mu_) = false;  // always false: Pause() waits on it with a timeout
};

// Returns the first key after all keys that begin with `prefix`, for ranges of etcd.
std::string BehindPrefix(std::string prefix);

}  // namespace muster
