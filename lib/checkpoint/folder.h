// Operations on folders. Every failure is a Status that names the path.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

// Creates `path` and its missing parents, and syncs each entry.
absl::Status MakeFolders(const std::string& path);

// Creates `path`. Returns ALREADY_EXISTS if it exists.
absl::Status MakeFolder(const std::string& path);

// Blocks until the folder's entries are on the device.
absl::Status SyncFolder(const std::string& path);

// Returns the names of the entries of `path`, sorted. Empty if it does not exist.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path);

// Renames `from` to `to`. Requires: `to` does not exist or is an empty folder. Durable once the
// parent is synced.
absl::Status RenameFolder(const std::string& from, const std::string& to);

// Exchanges `from` and `to` atomically. Durable once the parent is synced. Returns UNIMPLEMENTED if
// the file system cannot do this.
absl::Status ExchangeFolders(const std::string& from, const std::string& to);

// Removes the folder and its content. An absent folder is not an error. An entry that cannot be
// removed does not stop the removal of others. Returns the first error.
absl::Status RemoveFolder(const std::string& path);

// Returns the folder that contains `path`; "." for a bare name.
std::string ParentOf(const std::string& path);

}  // namespace muster
