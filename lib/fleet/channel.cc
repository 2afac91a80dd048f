#include "lib/fleet/channel.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "grpcpp/support/channel_arguments.h"
#include "lib/fleet/address.h"
#include "lib/limits/limits.h"
#include "lib/security/certificate.h"
#include "lib/security/tls_folder.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr unsigned kTlsLookSeconds = 1;

// Converts to gRPC's milliseconds, where the largest number means unbounded.
int Milliseconds(absl::Duration time) {
  constexpr int kUnbounded = std::numeric_limits<int>::max();
  return static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(time), kUnbounded));
}

absl::StatusOr<std::string> ReadFile(const std::string& path, absl::string_view reason) {
  std::ifstream file(path, std::ios::binary);
  std::string content(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || content.empty()) {
    return WithReason(absl::UnavailableError(absl::StrCat(
                          path, ": ", file.is_open() ? "is empty" : std::strerror(errno))),
                      reason);
  }
  return content;
}

// Reads the token from the file at each call, so that a new one is used at once.
class TokenOfFile final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenOfFile(std::string path) : path_(std::move(path)) {}

  bool IsBlocking() const override { return true; }
  const char* GetType() const override { return "muster-token"; }
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    const auto token = ReadFile(path_, "TOKEN_FILE");
    if (!token.ok()) {
      return {grpc::StatusCode::UNAUTHENTICATED, std::string(token.status().message())};
    }
    metadata->emplace("authorization", absl::StrCat("Bearer ", absl::StripAsciiWhitespace(*token)));
    return grpc::Status::OK;
  }

 private:
  const std::string path_;
};

// Checks the files before gRPC gets them: given a file that it cannot read, gRPC never connects and
// reports no error.
absl::Status CheckFolder(const TlsFolder& folder) {
  ASSIGN_OR_RETURN(const std::string authority, ReadFile(folder.authority(), "CERTIFICATE_FILES"));
  const auto root = ReadCertificate(authority);
  if (!root.ok()) {
    return WithReason(Annotate(root.status(), folder.authority()), "CERTIFICATE_FILES");
  }
  if (!folder.has_certificate()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string certificate,
                   ReadFile(folder.certificate(), "CERTIFICATE_FILES"));
  RETURN_IF_ERROR(ReadFile(folder.key(), "CERTIFICATE_FILES").status());
  const auto facts = ReadCertificate(certificate);
  absl::Status fault = !facts.ok() ? facts.status() : facts->identity.status();
  if (fault.ok() && facts->ends <= absl::Now()) {
    fault =
        absl::InvalidArgumentError(absl::StrCat("it expired on ", absl::FormatTime(facts->ends)));
  }
  if (fault.ok()) return absl::OkStatus();
  return WithReason(Annotate(fault, folder.certificate()), "CERTIFICATE_FILES");
}

}  // namespace

CoordinatorTarget::CoordinatorTarget(const std::string& addresses,
                                     std::shared_ptr<grpc::ChannelCredentials> proof)
    : turn_(std::make_shared<std::atomic<size_t>>(0)), credentials_(std::move(proof)) {
  std::vector<std::string> each = absl::StrSplit(addresses, ',', absl::SkipEmpty());
  if (each.empty()) each.push_back(addresses);
  addresses_ = std::make_shared<const std::vector<std::string>>(std::move(each));
}

const std::string& CoordinatorTarget::address() const { return (*addresses_)[*turn_]; }

void CoordinatorTarget::PassOver(const std::string& address) const {
  size_t turn = *turn_;
  if ((*addresses_)[turn] != address) return;
  turn_->compare_exchange_strong(turn, (turn + 1) % addresses_->size());
}

absl::StatusOr<CoordinatorTarget> SecureTarget(const std::string& addresses,
                                               const ClientSecurity& security) {
  RETURN_IF_ERROR(CheckAddresses(addresses));
  if (security.tls.empty()) {
    if (security.token_file.empty()) return CoordinatorTarget(addresses);
    return WithReason(
        absl::InvalidArgumentError(
            "the token would be sent in plaintext: give the folder of the coordinator's "
            "authority (ca.crt) with --tls as well"),
        "TOKEN_FILE");
  }
  const TlsFolder folder{security.tls};
  RETURN_IF_ERROR(CheckFolder(folder));
  grpc::experimental::TlsChannelCredentialsOptions options;
  if (folder.has_certificate()) {
    options.set_certificate_provider(
        std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
            folder.key(), folder.certificate(), folder.authority(), kTlsLookSeconds));
    options.watch_identity_key_cert_pairs();
  } else {
    options.set_certificate_provider(
        std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(folder.authority(),
                                                                             kTlsLookSeconds));
  }
  options.watch_root_certs();
  auto credentials = grpc::experimental::TlsCredentials(options);
  if (!security.token_file.empty()) {
    RETURN_IF_ERROR(ReadFile(security.token_file, "TOKEN_FILE").status());
    credentials = grpc::CompositeChannelCredentials(
        credentials,
        grpc::MetadataCredentialsFromPlugin(std::make_unique<TokenOfFile>(security.token_file)));
  }
  return CoordinatorTarget(addresses, std::move(credentials));
}

std::shared_ptr<grpc::Channel> DialCoordinator(const CoordinatorTarget& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(limits::kControlMessageBytesMax);
  arguments.SetMaxSendMessageSize(limits::kControlMessageBytesMax);
  // A leader that hangs must be noticed soon if another coordinator could take over.
  const bool several = target.addresses().size() > 1;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, several ? 2'000 : 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, several ? 2'000 : 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  if (several) arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Channels share no back-off: a new channel connects at once, even while another one backs off.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  // Despite its name, this argument bounds one attempt to connect, including the handshake. 100 ms
  // is not enough on busy processors.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2'000);
  // Ignore proxies set in the environment: they are for connections that leave the cluster.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(
      target.address(),
      target.credentials() != nullptr ? target.credentials() : grpc::InsecureChannelCredentials(),
      arguments);
}

void ConfigureServer(grpc::ServerBuilder& builder, const ConnectionAge& age) {
  builder.SetMaxReceiveMessageSize(limits::kRequestBytesMax);
  builder.SetMaxSendMessageSize(limits::kControlMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1'000);
  if (age.most < absl::InfiniteDuration()) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(age.most));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, Milliseconds(age.grace));
  }
  // A connection that opens more streams at once has to wait with the excess. A ps has one stream
  // per shard, and the shards wait for one another, so the limit must leave room for all of them.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             limits::kStreamsOfConnectionMax + limits::kShardThreadsMax);
  // Limits the threads that the server may start. Calls that find no free thread fail with
  // RESOURCE_EXHAUSTED.
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(limits::kServerThreadsMax);
  builder.SetResourceQuota(quota);
  // Two servers that share one port by SO_REUSEPORT would each get half of the members.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

}  // namespace muster
