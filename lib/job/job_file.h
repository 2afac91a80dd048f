// Reads and writes the YAML job file. Every fault has its line and its field path.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Dotted paths with YAML values, such as "training.steps" and "500": the arguments of `--set`.
using JobOverrides = std::vector<std::pair<std::string, std::string>>;

// Parses a job file. `file` is only for messages.
// Returns INVALID_ARGUMENT with all faults, one line each, also as FieldFaults
// (lib/status/field_fault.h):
// "char_gpt.yaml:12: training.step: unknown field; did you mean 'steps'?". A fault in an override
// has "--set training.step" in place of file and line.
// - Faults are unknown keys, wrong types, duplicate keys, two members of a oneof, and unknown enum
//   names.
// - An explicit 0 is a fault if the proto reads 0 as "unset" (resources.ps, except with allreduce).
// - `overrides` are applied before conversion, under the same checks. An override that names a
//   member of a oneof displaces the member that the file has chosen: --set training.epochs=2
//   replaces `steps` of the file.
// - A oneof is written by the key of its member, as in the proto.
// - Enum values are written in lower case, without the prefix that all values of the enum share:
//   "bsp", or "int8" for COMPRESSION_INT8.
// - A message with an enum `kind` may be written as the kind alone: "compression: int8".
// - Items of a list have paths such as "training.parameter_groups[1].match[0]".
// - Limits: 1 MiB of text, 10,000 values after aliases are expanded, 32 levels of nesting.
absl::StatusOr<v1::JobSpec> ParseJobFile(const std::string& text, const std::string& file,
                                         const JobOverrides& overrides = {});

// Returns `status` with the place in the file before each of its field faults. For faults that were
// found after parsing. If the file does not set a field, the place is that of the nearest enclosing
// field. A status without field faults is returned unchanged.
absl::Status LocateFaults(const absl::Status& status, const std::string& text,
                          const std::string& file, const JobOverrides& overrides = {});

// Returns the spec as the text of a job file. ParseJobFile() reads the same spec from it.
std::string ToYaml(const v1::JobSpec& spec);

}  // namespace muster
