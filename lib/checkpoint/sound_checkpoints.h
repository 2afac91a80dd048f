// Which checkpoints can be believed, and where those go that cannot.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace muster {

// Opens the checkpoint at `path` and reads every byte of it. DATA_LOSS (reason
// "CHECKPOINT_DAMAGED"), naming the file and what is wrong with it: damaged, or not there. Any
// other error says nothing about the checkpoint: it could not be read now, or (CANCELLED) `stop`,
// which may be null, did not want it any more.
absl::Status VerifyCheckpoint(const std::string& path, const std::function<bool()>& stop = nullptr);

// Of the checkpoints in the folder those that are sound, newest step first, but for the one of step
// `except`. Reads all of them.
std::vector<int64_t> SoundSteps(const std::string& directory, int64_t except,
                                const std::function<bool()>& stop = nullptr);

// For the end of an error about the checkpoint at `path`: "; sound beside it: steps 300, 100",
// or that there is none. Reads all that lie beside it.
std::string SoundOnesBeside(const std::string& path, const std::function<bool()>& stop = nullptr);

// The folder `step-<S>` is `step-<S>.damaged` from then on: no checkpoint any more, but there for
// whoever wants to save what can be saved. Durable; a checkpoint that is not there is fine, one
// that was set aside before goes.
absl::Status SetDamagedAside(const std::string& directory, int64_t step);

}  // namespace muster
