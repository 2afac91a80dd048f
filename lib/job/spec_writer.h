// JobSpec -> a job file that reads back as the same spec.
#pragma once

#include <string>

#include "proto/muster/v1/job.pb.h"

namespace muster {

std::string WriteSpec(const v1::JobSpec& spec);

// `text` as one YAML value, in quotes if it needs them.
std::string WriteText(const std::string& text);

}  // namespace muster
