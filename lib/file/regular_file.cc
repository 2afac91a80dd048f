#include "lib/file/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <system_error>

namespace muster {

OpenedFile KeepRegular(int descriptor) {
  if (descriptor < 0) return {.error_number = errno};
  struct stat facts;
  const int error_number = fstat(descriptor, &facts) != 0 ? errno : 0;
  if (error_number == 0 && S_ISREG(facts.st_mode)) return {.descriptor = descriptor};
  close(descriptor);
  return {.error_number = error_number};
}

OpenedFile OpenRegularFile(const std::string& path) {
  return KeepRegular(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
}

std::string HostName() {
  char host[HOST_NAME_MAX + 1] = {};
  return gethostname(host, HOST_NAME_MAX) == 0 && host[0] != '\0' ? host : "this machine";
}

std::string PathFault(const std::string& path, int error_number) {
  std::string why = std::generic_category().message(error_number);
  if (!why.empty()) why[0] = static_cast<char>(std::tolower(why[0]));
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return (error ? path : absolute.lexically_normal().string()) + ": " + why + " on " + HostName();
}

}  // namespace muster
