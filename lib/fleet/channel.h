// How a process dials the coordinator and how a server listens: limits, keepalive and retries in
// one place.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/channel.h"
#include "grpcpp/server_builder.h"

namespace muster {

// Keepalive 20 s / 10 s, messages up to limits::kControlMessageBytesMax, 2 s to connect, back-off
// 100 ms..1 s, which no other channel shares. Never blocks. (While nobody waits in gRPC it goes on
// with an attempt to connect once in five seconds only: who waits elsewhere between two calls dials
// anew for each.)
std::shared_ptr<grpc::Channel> DialCoordinator(const std::string& address);

// The matching server side: requests up to limits::kRequestBytesMax, limits::kServerThreadsMax
// threads for calls that block. Plaintext: security comes with its own issue.
void ConfigureServer(grpc::ServerBuilder& builder);

}  // namespace muster
