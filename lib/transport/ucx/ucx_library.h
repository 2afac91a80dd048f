// UCX, loaded when RDMA is first asked for: a program that is linked with UcxTransport runs where
// UCX is not installed, and a process that stays with TCP and shared memory has none of its signal
// handlers and memory hooks.
#pragma once

#include "absl/status/status.h"

namespace muster {

// Call before anything else of UCX. UNAVAILABLE, with what to install, where it cannot be loaded.
// Thread-safe; loads once.
absl::Status LoadUcx();

// Loads `library` in its place, whatever was loaded before. For tests.
absl::Status LoadUcxFrom(const char* library);

}  // namespace muster
