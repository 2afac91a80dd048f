// The files of the page. They are part of the program.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace muster {

struct PageAsset {
  absl::string_view path;  // "/page.js"
  absl::string_view content_type;
  absl::string_view content;
  std::string version;  // changes with the content; quoted as an ETag
};

// Returns null if there is no such file.
const PageAsset* FindPageAsset(absl::string_view path);

}  // namespace muster
