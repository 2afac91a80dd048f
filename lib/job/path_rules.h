// The rules for files of this machine that a job may name.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/status/field_fault.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// A job names a model file that a client uploaded by "uploads/<SHA-256>.safetensors". It lies in
// the coordinator's state folder, and no rule applies to it.
inline constexpr char kUploadsPrefix[] = "uploads/";
bool IsUploadedModel(absl::string_view path);

// Restricts the files that jobs may name to folders that the operator chose. A process opens the
// files of a job as its own user, for every client that may submit jobs. Such a client can obtain
// the samples that a model was trained on. Immutable.
class PathRules {
 public:
  PathRules() = default;  // allows any file

  // Reads folders separated by commas; "" allows any file. Returns INVALID_ARGUMENT if one of them
  // is not a folder.
  static absl::StatusOr<PathRules> Parse(absl::string_view folders);

  bool any() const { return roots_.empty(); }

  // Canonical; empty: any file.
  const std::vector<std::string>& roots() const { return roots_; }

  // Returns PERMISSION_DENIED (reason "PATH_NOT_ALLOWED"), with the allowed folders, if the file is
  // in none of them. Symbolic links are followed as far as the path exists. `path` need not exist.
  absl::Status Check(const std::string& path) const;

  // Checks a file as Check() does, or a folder and the first 10,000 entries directly in it, because
  // each entry may be a link. It only tells users early: files of samples are opened by
  // OpenRegularDataFile(), which follows no link out of the folders at any depth.
  absl::Status CheckWithin(const std::string& path) const;

  // As CheckWithin(), or for a path with wildcards (*, ?, {a,b}): checks the folder before the
  // first of them, and that no match can leave it.
  absl::Status CheckPattern(const std::string& pattern) const;

  // Checks the files of a data section. The error names the field of the first file that is not
  // allowed.
  absl::Status CheckData(const v1::DataSpec& data) const;

  // Returns a fault for each field that names a file that is not allowed: data, the model's file, a
  // folder to resume from. Files that the model's file names are not known yet.
  std::vector<FieldFault> FaultsOf(const v1::JobSpec& spec) const;

 private:
  std::vector<std::string> roots_;  // canonical
};

// Makes relative paths of a spec absolute, starting at `folder`: paths of data, of the model's file
// and of a folder to resume from. Returns whether there were any.
bool MakePathsAbsolute(v1::JobSpec& spec, const std::string& folder);

}  // namespace muster
