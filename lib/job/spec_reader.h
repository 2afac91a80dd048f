// A job file's tree -> JobSpec.
#pragma once

#include <vector>

#include "lib/job/located_fault.h"
#include "lib/job/yaml_tree.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Sets in `spec` what `root`, a map, says; the rules are those of ParseJobFile() (job_file.h).
// Returns every fault in the order of the file; `spec` is whole only where there is none.
std::vector<LocatedFault> ReadSpec(const YamlValue& root, v1::JobSpec& spec);

}  // namespace muster
