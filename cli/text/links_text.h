// What carries the data of a job between its members, as people read it.
#pragma once

#include <string>

#include "proto/muster/v1/coordinator.pb.h"

namespace muster::cli {

enum class LinkColumns { kFew, kAll };

// A row for each link, as the workers told of it, and which of them fell back to something slower,
// with the reason. Says so where there is nothing yet. kAll: also what is below the transport.
//
//   WORKER    PEER    TRANSPORT  SECURITY  SENT     RECEIVED
//   worker-0  ps-0/0  shm        host      1.2 GiB  1.2 GiB
std::string LinksText(const std::string& job, const v1::ReadJobLinksResponse& links,
                      LinkColumns columns = LinkColumns::kFew);

}  // namespace muster::cli
