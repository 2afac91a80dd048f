// Describes what this program was built from, and how.
#pragma once

#include <map>
#include <string>

namespace muster {

struct Build {
  std::string version;  // "0.2.0"
  std::string commit;   // "71f0bcc9d2a1"; "71f0bcc9d2a1-dirty" with uncommitted changes; "unknown"
  std::string
      kind;  // Bazel's compilation mode ("opt", "dbg" or "fastbuild"), and a sanitizer if any
  bool cuda = false;     // whether it includes the CUDA device
  std::string compiler;  // "g++ 12.2.0"
};

// Returns the build of the calling program. The commit is known only to programs that `bazel build`
// links in a Git checkout. `bazel test` does not stamp, so that a commit alone does not run tests
// again.
Build ThisBuild();

// "muster 0.2.0\ncommit 71f0bcc9d2a1\nbuild opt, CUDA, g++ 12.2.0\n"
std::string ToText(const Build& build);

// The labels of muster_build_info: commit, kind, cuda ("true" or "false") and compiler.
std::map<std::string, std::string> ToLabels(const Build& build);

}  // namespace muster
