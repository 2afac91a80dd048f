// UCX as this process uses it: its networks and settings, and what it reports about them.
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
  kAny,  // every network that UCX_TLS allows, including TCP; for tests, which have no other network
};

// Makes a context that uses these networks. Every UCX_* variable that is set takes precedence over
// the settings here, except a UCX_TLS that names other networks than `networks`. UCX's log messages
// go to our log unless UCX_LOG_FILE is set. Returns UNAVAILABLE, with advice, if UCX is not
// installed or finds no such network. Thread-safe.
absl::StatusOr<std::shared_ptr<ucp_context>> MakeUcxContext(UcxNetworks networks);

// Returns OK, CANCELLED, or UNAVAILABLE with UCX's message. `status` is a ucs_status_t.
absl::Status UcxStatus(int status);

// Returns the worker's own address, in UCX's format.
absl::StatusOr<std::string> UcxAddressOf(ucp_worker* worker);

// Destroys a worker, even if requests are unfinished.
void DestroyUcxWorker(ucp_worker* worker);

// The networks and devices that an endpoint uses.
struct UcxLanes {
  std::set<std::string> networks;  // "tcp"
  std::set<std::string> devices;   // "lo"
};
UcxLanes LanesOf(ucp_ep* endpoint);

// Whether UCX can read and write GPU memory directly.
bool TakesDeviceMemory(ucp_context* context);

// Registers `memory` with UCX. The registration keeps the context alive. Returns UNAVAILABLE if UCX
// cannot register the memory.
absl::StatusOr<std::unique_ptr<Transport::MemoryRegistration>> RegisterWithUcx(
    std::shared_ptr<ucp_context> context, absl::Span<std::byte> memory);

}  // namespace muster
