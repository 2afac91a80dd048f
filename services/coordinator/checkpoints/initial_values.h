// Stores the values that a model file brings, so that shards can restore them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/graph/model/model.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Writes a checkpoint of step 0 into a new folder below `directory`: the model's initial values,
// and zeros in every optimizer slot that has chunks. Returns the checkpoint's absolute path.
// Returns UNAVAILABLE (reason "STATE_UNWRITABLE") if the folder cannot be made, or an error of
// CheckpointWriter; then no files remain.
absl::StatusOr<std::string> WriteInitialValues(const std::string& directory,
                                               const v1::JobSpec& spec, const Model& model);

// Removes the folder below `directory` in which WriteInitialValues() made `path`. The part of
// `path` above that folder may differ, because a state folder may be moved. Requires:
// WriteInitialValues() made `path`.
void RemoveInitialValues(const std::string& directory, const std::string& path);

// Removes everything that WriteInitialValues() made below `directory`, except what is in `used`.
void RemoveOrphanedValues(const std::string& directory, absl::Span<const std::string> used);

}  // namespace muster
