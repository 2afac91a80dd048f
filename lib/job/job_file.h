// The YAML job file: text -> JobSpec, with the line and field path of every fault.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Dotted paths with YAML values, "training.steps" and "500": what `--set` gives.
using JobOverrides = std::vector<std::pair<std::string, std::string>>;

// Parses a job file. `overrides` are applied before conversion and under the same checks; one that
// names a member of a oneof displaces the member that the file has chosen (--set training.epochs=2
// where the file says steps). Unknown keys, wrong types, duplicate keys, two members of a oneof and
// enum names that do not exist are refused, all at once: INVALID_ARGUMENT with one line per fault,
// "char_gpt.yaml:12: training.step: unknown field; did you mean 'steps'?", also as FieldFaults
// (lib/status/field_fault.h). A fault in an override says "--set training.step" for file and line.
// `file` is only for messages. Oneofs are written by their member's key, as in the proto; enum
// values in lower case and without what all of the enum begin with ("bsp", "int8" for
// COMPRESSION_INT8); a message with an enum `kind` also as the kind alone ("compression: int8").
// Items of a list have paths like "training.parameter_groups[1].match[0]". An explicit 0 is refused
// where the proto takes it for "unset" (resources.ps, but with allreduce). At most 1 MiB of text,
// 10,000 values after aliases are expanded, nested 32 deep.
absl::StatusOr<v1::JobSpec> ParseJobFile(const std::string& text, const std::string& file,
                                         const JobOverrides& overrides = {});

// `status` with the place in the file before each of its field faults (the place of the nearest
// enclosing field where the file does not set the one at fault), for faults found after parsing. A
// status without field faults stays as it is.
absl::Status LocateFaults(const absl::Status& status, const std::string& text,
                          const std::string& file, const JobOverrides& overrides = {});

// The spec as a job file again.
std::string ToYaml(const v1::JobSpec& spec);

}  // namespace muster
