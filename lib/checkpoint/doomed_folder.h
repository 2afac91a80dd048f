// A folder among a job's checkpoints that is being removed.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// Has a temporary name that no other folder ever had, so that nothing is in the way of the rename,
// half of it never looks like a checkpoint, and one thread alone removes it.
class DoomedFolder {
 public:
  // Renames `path`: a checkpoint, a damaged one or a temporary folder. NOT_FOUND: there is none, or
  // somebody else removes it.
  static absl::StatusOr<DoomedFolder> SetAside(const std::string& path);

  // Syncs the rename, then removes the folder. What cannot be removed has a name then of which
  // IsLeft() is true.
  absl::Status Remove();

  // Whether `name` is of a folder whose removal failed: who finds it tries again.
  static bool IsLeft(absl::string_view name);

 private:
  DoomedFolder(std::string path, std::string left)
      : path_(std::move(path)), left_(std::move(left)) {}

  std::string path_;
  std::string left_;  // where it goes when it cannot be removed
};

// SetAside() and Remove().
absl::Status RemoveAside(const std::string& path);

}  // namespace muster
