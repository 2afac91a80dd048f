// The transport backend for RDMA.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/transport_backend.h"

namespace muster {

// Makes a backend that uses UCX over rc, dc and ud and no other network
// (lib/transport/ucx/ucx_transport.h). `loop` must outlive it. Returns UNAVAILABLE, with what to
// install or mount, if there is no UCX or no RDMA device.
absl::StatusOr<std::unique_ptr<TransportBackend>> MakeRdmaBackend(EventLoop* loop);

}  // namespace muster
