#include "lib/fleet/channel.h"

#include "grpcpp/create_channel.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "lib/limits/limits.h"

namespace muster {

std::shared_ptr<grpc::Channel> DialCoordinator(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(limits::kControlMessageBytesMax);
  arguments.SetMaxSendMessageSize(limits::kControlMessageBytesMax);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Channels know nothing of one another: a new one tries at once, whatever another waits for.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  // How long an attempt to connect may take, the handshake included (the name is gRPC's). On
  // processors that are busy a tenth of a second is not enough.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2'000);
  // A proxy of the environment is for the outside world.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

void ConfigureServer(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(limits::kRequestBytesMax);
  builder.SetMaxSendMessageSize(limits::kControlMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  // A connection that asks for more at once waits with the rest. A ps has a stream for each of its
  // shards, which wait for one another.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             limits::kStreamsOfConnectionMax + limits::kShardThreadsMax);
  // Calls that find no thread are answered RESOURCE_EXHAUSTED.
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(limits::kServerThreadsMax);
  builder.SetResourceQuota(quota);
  // Two servers on one port would each see half of the members.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

}  // namespace muster
