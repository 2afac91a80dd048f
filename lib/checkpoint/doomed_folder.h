// A folder in a job's checkpoint folder that is being removed.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// Gives the folder a temporary name that no other folder ever had. The rename therefore never fails
// because of an existing folder, a half-removed folder never looks like a checkpoint, and only one
// thread removes it.
class DoomedFolder {
 public:
  // Renames `path`: a checkpoint, a damaged one or a temporary folder. Returns NOT_FOUND if there
  // is none, or if another thread or process removes it.
  static absl::StatusOr<DoomedFolder> SetAside(const std::string& path);

  // Syncs the rename, then removes the folder. A folder that cannot be removed is renamed so that
  // IsLeft() is true for its name.
  absl::Status Remove();

  // Returns whether `name` is a folder that could not be removed; pruning tries again.
  static bool IsLeft(absl::string_view name);

 private:
  DoomedFolder(std::string path, std::string left)
      : path_(std::move(path)), left_(std::move(left)) {}

  std::string path_;
  std::string left_;  // its path if it cannot be removed
};

// Calls SetAside() and Remove().
absl::Status RemoveAside(const std::string& path);

}  // namespace muster
