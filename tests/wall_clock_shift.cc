// Preloaded into a process. Adds to its wall clock the seconds in the file that
// MUSTER_TEST_WALL_CLOCK names (an int64; a test may change it while the process runs).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace {

std::atomic<int64_t>* Shift() {
  static std::atomic<int64_t>* const shift = []() -> std::atomic<int64_t>* {
    const char* const path = getenv("MUSTER_TEST_WALL_CLOCK");
    const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) abort();
    void* const memory = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) abort();
    close(file);
    return static_cast<std::atomic<int64_t>*>(memory);
  }();
  return shift;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += Shift()->load();
  return result;
}

int gettimeofday(timeval* now, void*) noexcept {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  *now = {.tv_sec = time.tv_sec, .tv_usec = time.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* now) noexcept {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  if (now != nullptr) *now = time.tv_sec;
  return time.tv_sec;
}

}  // extern "C"
