// Formats the links between the members of a job for people.
#pragma once

#include <string>

#include "proto/muster/v1/coordinator.pb.h"

namespace muster::cli {

enum class LinkColumns { kFew, kAll };

// Returns a row for each link that a worker reported, and the links that fell back to a slower
// transport, with the reason. If there are no reports yet, it says so. kAll adds the network, the
// device and the fallback of each link.
//
//   WORKER    PEER    TRANSPORT  SECURITY  SENT     RECEIVED
//   worker-0  ps-0/0  shm        host      1.2 GiB  1.2 GiB
std::string LinksText(const std::string& job, const v1::ReadJobLinksResponse& links,
                      LinkColumns columns = LinkColumns::kFew);

}  // namespace muster::cli
