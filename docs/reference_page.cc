#include "docs/reference_page.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace muster {

void ExpectReferencePage(absl::string_view page, absl::string_view text, absl::string_view target) {
  if (const char* folder = std::getenv("MUSTER_WRITE_REFERENCE"); folder != nullptr) {
    std::ofstream(absl::StrCat(folder, "/", page)) << text;
    return;
  }
  const std::string path = absl::StrCat("docs/reference/", page);
  std::ifstream file(path);
  const std::string before((std::istreambuf_iterator<char>(file)), {});
  if (before == text) return;
  // The first line that differs says what changed; the whole pages would fill the screen.
  const std::vector<absl::string_view> old_lines = absl::StrSplit(before, '\n');
  const std::vector<absl::string_view> new_lines = absl::StrSplit(text, '\n');
  size_t i = 0;
  while (i < old_lines.size() && i < new_lines.size() && old_lines[i] == new_lines[i]) ++i;
  ADD_FAILURE() << path << " is stale: line " << i + 1 << " is '"
                << (i < old_lines.size() ? old_lines[i] : "") << "', the code says '"
                << (i < new_lines.size() ? new_lines[i] : "")
                << "'. Make it anew: MUSTER_WRITE_REFERENCE=$PWD/docs/reference bazel run "
                << target;
}

}  // namespace muster
