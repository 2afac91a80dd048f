#include "lib/transport/ucx/rdma_backend.h"

#include "lib/transport/ucx/ucx_transport.h"

namespace muster {

absl::StatusOr<std::unique_ptr<TransportBackend>> MakeRdmaBackend(EventLoop* loop) {
  return UcxTransport::Create(loop, {.networks = UcxTransportOptions::Networks::kRdmaOnly});
}

}  // namespace muster
