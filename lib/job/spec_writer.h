// Writes a JobSpec as a job file that reads back as the same spec.
#pragma once

#include <string>

#include "proto/muster/v1/job.pb.h"

namespace muster {

std::string WriteSpec(const v1::JobSpec& spec);

// Returns `text` as one YAML value, quoted if necessary.
std::string WriteText(const std::string& text);

}  // namespace muster
