// Preloaded into a process. While the file that MUSTER_TEST_FULL_DISK names exists, writes to files
// in folders called "state" fail as on a full disk.
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

bool IsFull(int file) {
  const char* const flag = getenv("MUSTER_TEST_FULL_DISK");
  if (flag == nullptr || access(flag, F_OK) != 0) return false;
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length <= 0) return false;
  path[length] = '\0';
  return strstr(path, "/state/") != nullptr;
}

}  // namespace

extern "C" {

ssize_t write(int file, const void* data, size_t bytes) {
  if (IsFull(file)) {
    errno = ENOSPC;
    return -1;
  }
  return syscall(SYS_write, file, data, bytes);
}

ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) {
  if (IsFull(file)) {
    errno = ENOSPC;
    return -1;
  }
  return syscall(SYS_pwrite64, file, data, bytes, offset);
}
ssize_t pwrite64(int file, const void* data, size_t bytes, off64_t offset) {
  return pwrite(file, data, bytes, offset);
}

int fallocate(int file, int mode, off_t offset, off_t bytes) {
  if (IsFull(file)) {
    errno = ENOSPC;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fallocate, file, mode, offset, bytes));
}
int fallocate64(int file, int mode, off64_t offset, off64_t bytes) {
  return fallocate(file, mode, offset, bytes);
}
int posix_fallocate(int file, off_t offset, off_t bytes) {
  return fallocate(file, 0, offset, bytes) == 0 ? 0 : errno;
}
int posix_fallocate64(int file, off64_t offset, off64_t bytes) {
  return posix_fallocate(file, offset, bytes);
}

}  // extern "C"
