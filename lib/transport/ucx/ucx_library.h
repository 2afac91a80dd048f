// UCX, loaded when RDMA is first requested. So a program linked with UcxTransport runs without an
// installed UCX. A process that uses only TCP and shared memory gets none of UCX's signal handlers
// and memory hooks.
#pragma once

#include "absl/status/status.h"

namespace muster {

// Loads UCX, once. Call before any other function of UCX. Returns UNAVAILABLE, with what to
// install, if UCX cannot be loaded. Thread-safe.
absl::Status LoadUcx();

// Loads `library` in place of UCX, whatever was loaded before. For tests.
absl::Status LoadUcxFrom(const char* library);

}  // namespace muster
