// Describes what this program was built from, and how.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace muster {

struct Build {
  // "0.3.0" for a release. "0.3.0+14.g71f0bcc9d2a1" is 14 commits later; ".dirty" follows if there
  // were uncommitted changes. The part after the + tells builds apart and has no order.
  std::string version;
  std::string commit;  // "71f0bcc9d2a1"; "71f0bcc9d2a1-dirty" with uncommitted changes; "unknown"
  std::string
      kind;  // Bazel's compilation mode ("opt", "dbg" or "fastbuild"), and a sanitizer if any
  bool cuda = false;     // whether it includes the CUDA device
  std::string compiler;  // "g++ 12.2.0"
};

// Returns the build of the calling program. The commit is known only to programs that `bazel build`
// links in a Git checkout. `bazel test` does not stamp, so that a commit alone does not run tests
// again.
Build ThisBuild();

// Returns the build of a program that was linked with `stamp`, a value of BUILD_EMBED_LABEL from
// tools/workspace_status.sh.
Build BuildOf(absl::string_view stamp);

// Returns "muster 0.3.0\ncommit 71f0bcc9d2a1\nbuild opt, CUDA, g++ 12.2.0\n".
std::string ToText(const Build& build);

// Returns the labels of muster_build_info: version, commit, kind, cuda ("true" or "false") and
// compiler.
std::map<std::string, std::string> ToLabels(const Build& build);

}  // namespace muster
