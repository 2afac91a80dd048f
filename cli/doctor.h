// What of this machine Muster will use, and what is in its way.
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
  std::string what;  // what there is, and what is made of it
  std::string cure;  // of a warning or a fault: what to do
};

struct MachineOptions {
  std::string state_dir = ".";  // whose disk is looked at
};
// Cores, memory, limits, shared memory, what links will be, GPUs, NCCL, RDMA, ports and disk. Asks
// nobody else; at most a second.
std::vector<Finding> ExamineMachine(const MachineOptions& options);

// The files that --tls names: there, readable, in force for a week yet, the key for its owner
// alone.
Finding ExamineTls(const std::string& folder, absl::Time now);

// When a coordinator was asked, when its answer came, and what its clock said in between.
struct ClockLook {
  absl::Time asked, answered, server;
};
Finding ExamineClock(const ClockLook& look);

// One line for each, with its cure below; the last line counts.
std::string DoctorText(absl::Span<const Finding> findings, bool color);

}  // namespace muster::cli
