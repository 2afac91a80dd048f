// The functions of muster data. They take the decoder of images as an argument.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "cli/commands/session.h"
#include "cli/data/inspection.h"
#include "cli/data/verification.h"
#include "lib/data/image_rows.h"

namespace muster::cli {

// Opens the data of a job file, so that their index is saved in `index_folder`, if it is not "".
// Prints numbers of samples, files and bytes, the fingerprint, and how long it took.
absl::Status PrintIndex(const std::string& file, const std::string& index_folder,
                        const MakeImageRows& make_image_rows, const Session& session);

// Prints the format of the data at `path`, and a `data:` section to start from.
absl::Status PrintInspection(const std::string& path, const InspectOptions& options,
                             const Session& session);

// Reads every sample of a job file's data once and prints the damaged ones. Sets the exit code to 1
// if there are any. `index_folder` may be "".
absl::Status PrintVerification(const std::string& file, const VerifyOptions& options,
                               const std::string& index_folder,
                               const MakeImageRows& make_image_rows, Session& session);

}  // namespace muster::cli
