// Finds checkpoints that are not damaged, and sets damaged ones aside.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace muster {

// Opens the checkpoint at `path` and reads every byte of it. Returns DATA_LOSS (reason
// "CHECKPOINT_DAMAGED"), with the file and the fault, if it is damaged or missing. Any other error
// says nothing about the checkpoint: it could not be read now, or `stop` returned true (CANCELLED).
// `stop` may be null.
absl::Status VerifyCheckpoint(const std::string& path, const std::function<bool()>& stop = nullptr);

// Returns the steps of the undamaged checkpoints in the folder, newest first, without step
// `except`. Reads all of them completely.
std::vector<int64_t> SoundSteps(const std::string& directory, int64_t except,
                                const std::function<bool()>& stop = nullptr);

// Returns the end of an error message about the checkpoint at `path`: "; sound beside it: steps
// 300, 100", or that there is no other. Reads all other checkpoints in its folder completely.
std::string SoundOnesBeside(const std::string& path, const std::function<bool()>& stop = nullptr);

// Renames the folder `step-<S>` to `step-<S>.damaged`. It is no longer a checkpoint, but a user can
// still recover data from it. Durable. A missing checkpoint is not an error. An earlier folder of
// that name is removed.
absl::Status SetDamagedAside(const std::string& directory, int64_t step);

}  // namespace muster
