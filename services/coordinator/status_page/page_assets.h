// The files of the page, which are part of the program.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace muster {

struct PageAsset {
  absl::string_view path;  // "/page.js"
  absl::string_view content_type;
  absl::string_view content;
  std::string version;  // changes with the content; in quotes, as an ETag
};

// Null where there is none.
const PageAsset* FindPageAsset(absl::string_view path);

}  // namespace muster
