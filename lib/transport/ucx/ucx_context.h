// UCX as this process uses it: which networks, with which settings, and what it says of them.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/transport/core/transport.h"

struct ucp_context;
struct ucp_ep;
struct ucp_worker;

namespace muster {

enum class UcxNetworks {
  kRdmaOnly,  // rc, dc and ud; no TCP socket is opened
  kAny,       // what UCX_TLS allows, TCP too; for tests, which have no other network
};

// Every UCX_* variable that is set wins over what is tuned here, but for a UCX_TLS that names other
// networks than `networks`. What UCX logs goes to our log. UNAVAILABLE, with what to try, where UCX
// is not installed or finds no such network. Thread-safe.
absl::StatusOr<std::shared_ptr<ucp_context>> MakeUcxContext(UcxNetworks networks);

// OK, CANCELLED, or UNAVAILABLE with UCX's own words. `status`: a ucs_status_t.
absl::Status UcxStatus(int status);

// The worker's own address, as other processes' UCX reads it.
absl::StatusOr<std::string> UcxAddressOf(ucp_worker* worker);

// Ends a worker, whatever is left unfinished.
void DestroyUcxWorker(ucp_worker* worker);

// What carries an endpoint.
struct UcxLanes {
  std::set<std::string> networks;  // "tcp"
  std::set<std::string> devices;   // "lo"
};
UcxLanes LanesOf(ucp_ep* endpoint);

// Whether UCX reads and writes GPU memory by itself.
bool TakesDeviceMemory(ucp_context* context);

// UNAVAILABLE where UCX does not take it. The registration keeps the context.
absl::StatusOr<std::unique_ptr<Transport::MemoryRegistration>> RegisterWithUcx(
    std::shared_ptr<ucp_context> context, absl::Span<std::byte> memory);

}  // namespace muster
