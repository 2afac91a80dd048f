// The name that a cluster has for good.
#pragma once

#include <string>

namespace muster {

// A random UUID (RFC 9562, version 4): no other call has it.
std::string NewClusterId();

}  // namespace muster
