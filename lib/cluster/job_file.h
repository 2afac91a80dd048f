// The YAML job file: text -> JobSpec, with the line and field path of every fault.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Parses a job file. `overrides` are dotted paths with YAML values ("training.steps", "500"), applied before conversion.
// Unknown keys, wrong types, duplicate keys, two members of a oneof and enum names that do not exist are refused, all at
// once: INVALID_ARGUMENT with one line per fault, "char_gpt.yaml:12: training.step: unknown field; did you mean 'steps'?",
// also as FieldFaults (lib/cluster/field_fault.h). `file` is only for messages. `mode: {zoo: ...}`-like oneofs are written
// by their member's key, as in the proto; enum values in lower case ("bsp").
absl::StatusOr<v1::JobSpec> ParseJobFile(const std::string& text, const std::string& file,
                                         const std::vector<std::pair<std::string, std::string>>& overrides = {});

// The spec as a job file again.
std::string ToYaml(const v1::JobSpec& spec);

}  // namespace muster
