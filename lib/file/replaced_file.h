// Replaces small files as a whole.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace muster {

// Makes `content` the content of the file. A reader, and a crash, see the whole old file or the
// whole new one. The file has `mode` from its creation, so that no other user can read a secret at
// any time. Blocks until the content is on disk; does not sync the folder, so the old file may be
// back after a crash of the machine. Returns UNAVAILABLE with the path, the operation and the
// cause, and leaves the old file. Requires: no other thread of this process replaces the same file
// meanwhile.
absl::Status ReplaceFile(const std::string& path, absl::string_view content, mode_t mode = 0644);

}  // namespace muster
