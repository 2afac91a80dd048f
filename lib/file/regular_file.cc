#include "lib/file/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace muster {

OpenedFile OpenRegularFile(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return {.error_number = errno};
  struct stat facts;
  const int error_number = fstat(descriptor, &facts) != 0 ? errno : 0;
  if (error_number == 0 && S_ISREG(facts.st_mode)) return {.descriptor = descriptor};
  close(descriptor);
  return {.error_number = error_number};
}

}  // namespace muster
