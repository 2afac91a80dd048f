// Lists the files that a path of a job names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

struct ListedFile {
  std::string path;
  int64_t bytes = 0;
  int64_t modified_ns = 0;  // since 1970, on the clock of its storage
};

struct FileListOptions {
  std::string extension = {};  // of the files of a folder, such as ".tar"; "": any
  bool is_recursive = false;   // whether a folder stands for its folders, too
  int64_t files_max = 1'000'000;
};

// Returns the files of `path`, sorted by the bytes of their paths, each once. At least one. `path`
// is one of these:
// - a file;
// - a folder: it stands for its regular files;
// - a pattern. "*" is any text and "?" any character of one name, except a dot at its start.
//   "{000..146}" is each number of the range, and "{a,b}" each of the texts. A path of braces must
//   match at least one file; a folder that matches "*" is skipped.
// Names in folders that begin with a dot are skipped. Links are followed.
//
// Blocks. Calls CheckWatch() for each folder and every 1,000 entries, as do the other functions
// here. `field` begins the message of an error:
// - DATA_NOT_FOUND if nothing matches. It names what the nearest folder holds.
// - DATA_UNREADABLE if the storage fails three times.
// - DATA_INVALID for a pipe or a device, for faulty braces, and for more than `files_max` files.
absl::StatusOr<std::vector<ListedFile>> ListFiles(const std::string& path, absl::string_view field,
                                                  const FileListOptions& options = {});

// Returns the patterns without braces that `path` stands for, in their order. Returns DATA_INVALID
// for faulty braces, and for more than `patterns_max` patterns.
absl::StatusOr<std::vector<std::string>> ExpandBraces(const std::string& path,
                                                      absl::string_view field,
                                                      int64_t patterns_max = 1'000'000);

// Calls `visit` for each regular file below `folder`, as above, but with its name relative to
// `folder` and in no order. Ends with the first error. Takes no memory for the files. A folder that
// several links lead to is visited once, so a cycle of links ends.
absl::Status VisitFiles(
    const std::string& folder, absl::string_view field, const FileListOptions& options,
    absl::FunctionRef<absl::Status(absl::string_view name, int64_t bytes, int64_t modified_ns)>
        visit);

// Returns the names of the folders directly in `folder`, sorted by bytes. Skips and follows as
// above.
absl::StatusOr<std::vector<std::string>> ListFolders(const std::string& folder,
                                                     absl::string_view field);

}  // namespace muster
