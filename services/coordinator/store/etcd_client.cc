#include "services/coordinator/store/etcd_client.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "grpcpp/support/channel_arguments.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/security/tls_folder.h"
#include "lib/status/status.h"
#include "proto/third_party/etcd/rpc.grpc.pb.h"

namespace muster {
namespace {

namespace etcd = ::etcdserverpb;

constexpr unsigned kTlsLookSeconds = 1;
constexpr absl::Duration kPause = absl::Milliseconds(50);  // after every server was tried
constexpr int kDoublingsMax = 4;                           // of the time limit for one server
constexpr int kNamingsMax = 3;                             // authentications in one call
constexpr char kTokenField[] = "token";  // etcd's name for this metadata field of a call

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialsOf(const std::string& path) {
  if (path.empty()) return grpc::InsecureChannelCredentials();
  const TlsFolder folder{path};
  std::vector<std::string> files = {folder.authority()};
  if (folder.has_certificate()) files.push_back(folder.key());
  for (const std::string& file : files) {  // gRPC reports nothing if it cannot read a file
    if (std::ifstream(file).good()) continue;
    return WithReason(absl::UnavailableError(absl::StrCat(file, " cannot be read")),
                      "CERTIFICATE_FILES");
  }
  grpc::experimental::TlsChannelCredentialsOptions options;
  using Provider = grpc::experimental::FileWatcherCertificateProvider;
  options.set_certificate_provider(
      folder.has_certificate() ? std::make_shared<Provider>(folder.key(), folder.certificate(),
                                                            folder.authority(), kTlsLookSeconds)
                               : std::make_shared<Provider>(folder.authority(), kTlsLookSeconds));
  if (folder.has_certificate()) options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  return grpc::experimental::TlsCredentials(options);
}

// Returns true for errors that another server, or a later attempt, may not return.
bool IsPassing(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::CANCELLED:  // a server that shuts down
    case grpc::StatusCode::ABORTED:
      return true;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return absl::StrContains(status.error_message(), "too many requests");
    case grpc::StatusCode::UNKNOWN:  // older servers: "leader changed"
      return absl::StrContains(status.error_message(), "leader");
    default:
      return false;
  }
}

// Returns true if etcd rejects our token, so that the client must authenticate again. A token
// expires after some minutes. A restarted server knows no tokens. Every change of users or roles
// voids all.
bool IsOfTheToken(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
         (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT &&
          absl::StrContains(status.error_message(), "revision of auth store is old"));
}

absl::Status FromEtcd(const grpc::Status& status, const std::string& message) {
  switch (status.error_code()) {
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return WithReason(absl::ResourceExhaustedError(message), "STORE_FULL");
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return WithReason(absl::PermissionDeniedError(message), "STORE_UNWRITABLE");
    case grpc::StatusCode::INVALID_ARGUMENT:
      // The user name or the password is wrong or missing.
      if (absl::StrContains(message, "auth") || absl::StrContains(message, "user name")) {
        return WithReason(absl::PermissionDeniedError(message), "STORE_UNWRITABLE");
      }
      return WithReason(absl::InternalError(message), "STORE_FAILED");
    case grpc::StatusCode::NOT_FOUND:
      return WithReason(absl::NotFoundError(message), "STORE_FAILED");
    default:
      if (IsPassing(status))
        return WithReason(absl::UnavailableError(message), "STORE_UNREACHABLE");
      return WithReason(absl::InternalError(message), "STORE_FAILED");
  }
}

}  // namespace

std::string BehindPrefix(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');  // "\0" means: to the end of the key space
  ++prefix.back();
  return prefix;
}

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Create(Options options) {
  ASSIGN_OR_RETURN(const auto credentials, CredentialsOf(options.tls));
  return std::unique_ptr<EtcdClient>(new EtcdClient(std::move(options), credentials));
}

EtcdClient::EtcdClient(Options options,
                       const std::shared_ptr<grpc::ChannelCredentials>& credentials)
    : options_(std::move(options)), names_(absl::StrJoin(options_.servers, ",")) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // the store reads in pages; etcd limits what is written
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  for (const std::string& server : options_.servers) {
    channels_.push_back(grpc::CreateCustomChannel(server, credentials, arguments));
  }
}

grpc::Status EtcdClient::Authenticate(const std::shared_ptr<grpc::Channel>& channel,
                                      absl::Duration timeout) {
  etcd::AuthenticateRequest request;
  request.set_name(options_.user);
  std::ifstream file(options_.password_file);
  const std::string password(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open()) {
    return {grpc::StatusCode::PERMISSION_DENIED,
            absl::StrCat(options_.password_file, " cannot be read")};
  }
  request.set_password(std::string(absl::StripAsciiWhitespace(password)));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  etcd::AuthenticateResponse response;
  const grpc::Status status =
      etcd::Auth::NewStub(channel)->Authenticate(&context, request, &response);
  absl::MutexLock lock(&mu_);
  if (status.ok()) token_ = response.token();
  return status;
}

absl::Status EtcdClient::Call(absl::string_view what, absl::Duration timeout, Attempt attempt) {
  const absl::Duration end = SteadyNow() + timeout;
  int named = 0;  // repeated authentications after a rejected token
  size_t tries = 0;
  while (true) {
    size_t server;
    std::string token;
    {
      absl::MutexLock lock(&mu_);
      server = server_;
      token = token_;
    }
    // A slow server answers in one of the rounds, because the time limit doubles.
    const int doublings = std::min<int>(tries / channels_.size(), kDoublingsMax);
    const absl::Duration patience =
        std::min(options_.try_max * (1 << doublings), end - SteadyNow());
    grpc::Status status;
    if (!options_.user.empty() && token.empty()) {
      status = Authenticate(channels_[server], patience);
      if (status.ok()) continue;
    } else {
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
      if (!token.empty()) context.AddMetadata(kTokenField, token);
      status = attempt(channels_[server], context);
      if (status.ok()) return absl::OkStatus();
      if (!token.empty() && IsOfTheToken(status) && ++named <= kNamingsMax) {
        absl::MutexLock lock(&mu_);
        if (token_ == token) token_.clear();  // otherwise another thread has authenticated already
        continue;
      }
    }
    const std::string message = absl::StrCat("etcd at ", options_.servers[server], ", ", what, ": ",
                                             status.error_message());
    if (!IsPassing(status) || SteadyNow() + kPause >= end) return FromEtcd(status, message);
    {
      absl::MutexLock lock(&mu_);
      if (server_ == server) server_ = (server + 1) % channels_.size();
    }
    if (++tries % channels_.size() == 0) Pause(*channels_[server]);
  }
}

// Waits inside gRPC while a server is not connected. gRPC continues to connect only while a caller
// waits for the channel. Without that its final error is a timeout, which hides certificate errors.
void EtcdClient::Pause(grpc::Channel& channel) {
  if (channel.GetState(/*try_to_connect=*/true) != GRPC_CHANNEL_READY) {
    channel.WaitForConnected(absl::ToChronoTime(absl::Now() + kPause));
    return;
  }
  absl::MutexLock lock(&mu_);
  AwaitFor(&mu_, absl::Condition(&closing_), kPause);
}

absl::StatusOr<etcd::RangeResponse> EtcdClient::Range(const etcd::RangeRequest& request,
                                                      absl::Duration timeout) {
  etcd::RangeResponse response;
  RETURN_IF_ERROR(Call("reading", timeout, [&](const auto& channel, grpc::ClientContext& context) {
    return etcd::KV::NewStub(channel)->Range(&context, request, &response);
  }));
  return response;
}

absl::StatusOr<etcd::TxnResponse> EtcdClient::Txn(const etcd::TxnRequest& request,
                                                  absl::Duration timeout) {
  etcd::TxnResponse response;
  RETURN_IF_ERROR(Call("writing", timeout, [&](const auto& channel, grpc::ClientContext& context) {
    return etcd::KV::NewStub(channel)->Txn(&context, request, &response);
  }));
  return response;
}

absl::StatusOr<etcd::LeaseGrantResponse> EtcdClient::Grant(absl::Duration time_to_live,
                                                           absl::Duration timeout) {
  etcd::LeaseGrantRequest request;
  request.set_ttl(absl::ToInt64Seconds(absl::Ceil(time_to_live, absl::Seconds(1))));
  etcd::LeaseGrantResponse response;
  RETURN_IF_ERROR(
      Call("asking for a lease", timeout, [&](const auto& channel, grpc::ClientContext& context) {
        return etcd::Lease::NewStub(channel)->LeaseGrant(&context, request, &response);
      }));
  return response;
}

absl::StatusOr<absl::Duration> EtcdClient::KeepAlive(int64_t lease, absl::Duration timeout) {
  etcd::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcd::LeaseKeepAliveResponse response;
  RETURN_IF_ERROR(
      Call("renewing the lease", timeout, [&](const auto& channel, grpc::ClientContext& context) {
        auto stream = etcd::Lease::NewStub(channel)->LeaseKeepAlive(&context);
        const bool answered = stream->Write(request) && stream->Read(&response);
        if (answered) {
          context.TryCancel();
          stream->Finish();  // finishes as CANCELLED because of TryCancel()
          return grpc::Status::OK;
        }
        const grpc::Status status = stream->Finish();
        return status.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "no answer") : status;
      }));
  if (response.ttl() <= 0) {
    return WithReason(absl::NotFoundError("etcd has ended the lease"), "STORE_LOST");
  }
  return absl::Seconds(response.ttl());
}

absl::Status EtcdClient::Revoke(int64_t lease, absl::Duration timeout) {
  etcd::LeaseRevokeRequest request;
  request.set_id(lease);
  etcd::LeaseRevokeResponse response;
  return Call("ending the lease", timeout, [&](const auto& channel, grpc::ClientContext& context) {
    return etcd::Lease::NewStub(channel)->LeaseRevoke(&context, request, &response);
  });
}

}  // namespace muster
