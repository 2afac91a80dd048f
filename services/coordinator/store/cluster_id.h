// Creates the permanent id of a cluster.
#pragma once

#include <string>

namespace muster {

// Returns a random UUID (RFC 9562, version 4). Each call returns another one.
std::string NewClusterId();

}  // namespace muster
