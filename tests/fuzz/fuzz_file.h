// Puts the input of a fuzz target into a file, for readers that take a path.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/string_view.h"
#include "glog/logging.h"

namespace muster {

// Writes the bytes to a file with this name in a folder of this process. Returns its path.
inline std::string WriteFuzzFile(const std::string& name, absl::string_view bytes) {
  static const auto* const folder = [] {
    auto* path = new std::string(std::filesystem::temp_directory_path() / "muster_fuzz-XXXXXX");
    CHECK(mkdtemp(path->data()) != nullptr) << *path;
    static std::string removed = *path;
    atexit([] { std::filesystem::remove_all(removed); });
    return path;
  }();
  const std::string path = *folder + "/" + name;
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  return path;
}

}  // namespace muster
