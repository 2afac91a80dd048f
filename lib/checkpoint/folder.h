// Folders; every failure is a Status that names the path.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

// Makes `path` and what is missing above it, each entry synced.
absl::Status MakeFolders(const std::string& path);

// Makes `path`; ALREADY_EXISTS when it is there.
absl::Status MakeFolder(const std::string& path);

// Returns once the folder's entries are on the device.
absl::Status SyncFolder(const std::string& path);

// Names of the entries of `path`, sorted. None when it does not exist.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path);

// Renames `from` to `to`, which must not exist or be an empty folder. Durable once the parent is
// synced.
absl::Status RenameFolder(const std::string& from, const std::string& to);

// Puts `from` into the place of `to`, and `to` into the place of `from`, in one step. Durable once
// the parent is synced. UNIMPLEMENTED when the file system cannot.
absl::Status ExchangeFolders(const std::string& from, const std::string& to);

// Removes the folder and all in it; an absent one is fine. An entry that cannot be removed keeps
// none of the others; the first error.
absl::Status RemoveFolder(const std::string& path);

// The folder that holds `path`, "." for a bare name.
std::string ParentOf(const std::string& path);

}  // namespace muster
