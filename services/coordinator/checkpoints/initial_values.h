// The values that a model's file brings along, kept where shards can restore them from.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/graph/model/model.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Writes a checkpoint of step 0 into a new folder below `directory`: the model's initial values,
// zeros in every optimizer slot. Returns the checkpoint's absolute path. Errors as
// CheckpointWriter's; nothing is left behind then.
absl::StatusOr<std::string> WriteInitialValues(const std::string& directory,
                                               const v1::JobSpec& spec, const Model& model);

// Removes the folder below `directory` in which WriteInitialValues() made `path`, which may have
// had another name above that folder then: a state folder may be moved. Whether it made it the
// caller knows.
void RemoveInitialValues(const std::string& directory, const std::string& path);

// Removes what WriteInitialValues() made below `directory`, but for what is in `used`.
void RemoveOrphanedValues(const std::string& directory, absl::Span<const std::string> used);

}  // namespace muster
