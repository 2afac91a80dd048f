// Converts the tree of a job file to a JobSpec.
#pragma once

#include <vector>

#include "lib/job/yaml/located_fault.h"
#include "lib/job/yaml/yaml_tree.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Sets the fields of `spec` that `root`, a map, contains, by the rules of ParseJobFile()
// (job_file.h). Returns every fault. If there is one, `spec` is incomplete.
std::vector<LocatedFault> ReadSpec(const YamlValue& root, v1::JobSpec& spec);

}  // namespace muster
