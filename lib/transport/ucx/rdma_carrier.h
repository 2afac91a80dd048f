// What carries links over RDMA.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "lib/transport/core/carrier.h"
#include "lib/transport/core/event_loop.h"

namespace muster {

// UCX over rc, dc and ud, and no other network (lib/transport/ucx/ucx_transport.h). `loop` outlives
// the carrier. UNAVAILABLE, with what to install or to mount, where there is no UCX or no RDMA
// device.
absl::StatusOr<std::unique_ptr<Carrier>> MakeRdmaCarrier(EventLoop* loop);

}  // namespace muster
