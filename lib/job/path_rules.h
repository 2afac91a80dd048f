// Which files of this machine a job may name.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/status/field_fault.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// A process opens files for whoever may submit jobs, as the user that it runs as: the samples that
// a model was trained on can be had from it. So an operator says where data lies. Immutable.
class PathRules {
 public:
  PathRules() = default;  // any file

  // Of folders with commas between them; "": any file. INVALID_ARGUMENT: one is no folder.
  static absl::StatusOr<PathRules> Parse(absl::string_view folders);

  bool any() const { return roots_.empty(); }

  // PERMISSION_DENIED (reason "PATH_NOT_ALLOWED"), with the folders: the file is in none of them,
  // symbolic links followed as far as it exists. `path` need not exist.
  absl::Status Check(const std::string& path) const;

  // The same of a file, or of a folder and the files in it, each of which may be a link.
  absl::Status CheckWithin(const std::string& path) const;

  // The same for the files of a data section, with the field; the first that is not allowed.
  absl::Status CheckData(const v1::DataSpec& data) const;

  // The fields of a spec that name files which are not allowed: data, the model's file, a folder to
  // resume from. What other files the model's names is not known yet.
  std::vector<FieldFault> FaultsOf(const v1::JobSpec& spec) const;

 private:
  std::vector<std::string> roots_;  // canonical
};

// Makes the relative paths of a spec absolute, as seen from `folder`: those of data, of the model's
// file and of a folder to resume from. Returns whether it had any.
bool MakePathsAbsolute(v1::JobSpec& spec, const std::string& folder);

}  // namespace muster
