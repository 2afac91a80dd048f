// Examines what Muster can use of this machine, and what would prevent it.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace muster::cli {

struct Finding {
  enum Level { kFine, kNote, kWarning, kFault };
  std::string name;  // "shared memory"
  Level level = kFine;
  std::string what;  // what was found, and how Muster uses it
  std::string cure;  // what to do; "" unless it is a warning or a fault
};

struct MachineOptions {
  std::string state_dir = ".";  // the folder whose disk is examined
};
// Examines cores, limits, shared memory, links, GPUs, NCCL, RDMA, ports and disk. Makes no calls to
// other machines. Blocks for at most a second.
std::vector<Finding> ExamineMachine(const MachineOptions& options);

// Checks the files in the --tls folder: ca.crt is a certificate, tls.crt stays valid for another
// week, and only the owner can read tls.key. A folder with only ca.crt is fine.
Finding ExamineTls(const std::string& folder, absl::Time now);

// The time of a request to the coordinator, the time of its response, and the coordinator's clock
// in between.
struct ClockLook {
  absl::Time asked, answered, server;
};
Finding ExamineClock(const ClockLook& look);

// Returns one line for each finding, with its cure below. The last line counts faults and warnings.
std::string DoctorText(absl::Span<const Finding> findings, bool color);

}  // namespace muster::cli
