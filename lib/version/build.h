// What this program was built from, and how.
#pragma once

#include <map>
#include <string>

namespace muster {

struct Build {
  std::string version;   // "0.2.0"
  std::string commit;    // "71f0bcc9d2a1"; "71f0bcc9d2a1-dirty" with changes beside it; "unknown"
  std::string kind;      // Bazel's compilation mode, "opt", "dbg" or "fastbuild", and a sanitizer
  bool cuda = false;     // whether the CUDA device is in it
  std::string compiler;  // "g++ 12.2.0"
};

// Of the program that calls. The commit is known to programs that `bazel build` links in a checkout
// of Git; `bazel test` stamps nothing, so that a commit runs no test again.
Build ThisBuild();

// "muster 0.2.0\ncommit 71f0bcc9d2a1\nbuild opt, CUDA, g++ 12.2.0\n"
std::string ToText(const Build& build);

// For muster_build_info: commit, kind, cuda ("true" or "false") and compiler.
std::map<std::string, std::string> ToLabels(const Build& build);

}  // namespace muster
