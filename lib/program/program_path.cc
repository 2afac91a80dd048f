#include "lib/program/program_path.h"

#include <errno.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

namespace muster {

std::string ProgramPath() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path named = program_invocation_name;  // glibc's copy of argv[0]
  if (named.is_absolute() && access(named.c_str(), X_OK) == 0) {
    const fs::path path = fs::canonical(named, error);
    if (!error) return path.string();
  }
  return fs::read_symlink("/proc/self/exe", error).string();
}

}  // namespace muster
