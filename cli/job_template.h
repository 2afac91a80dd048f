// Job files to begin with: complete, and with a word on every line that one is likely to change.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::cli {

// The models that there are templates for: those of the zoo.
std::vector<std::string> TemplateModels();

// A job file for one of them. It can be submitted as it is where the data that it names is there.
// INVALID_ARGUMENT for another model lists them.
absl::StatusOr<std::string> JobTemplate(const std::string& model);

}  // namespace muster::cli
