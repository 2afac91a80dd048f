#include "services/coordinator/state_disk.h"

#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

namespace muster {

namespace fs = std::filesystem;

StateDisk::StateDisk(Paths paths, Metrics& metrics)
    : paths_(std::move(paths)),
      free_(metrics.Gauge("muster_state_free_bytes",
                          "What the file system of --state_dir has left for this process.")),
      size_(metrics.Gauge("muster_state_size_bytes", "Size of the file system of --state_dir.")),
      store_bytes_(
          metrics.Gauge("muster_store_bytes", "What the store takes, with its write-ahead log.")) {
  Look();
  thread_ = std::thread([this] { Run(); });
}

StateDisk::~StateDisk() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void StateDisk::Run() {
  for (;;) {
    {
      absl::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&stopping_), kInterval)) return;
    }
    Look();
  }
}

// What cannot be told stays as it was.
void StateDisk::Look() {
  std::error_code error;
  const fs::space_info space = fs::space(fs::path(paths_.folder), error);
  if (!error) {
    free_.Set(static_cast<double>(space.available));
    size_.Set(static_cast<double>(space.capacity));
  }
  double bytes = 0;
  for (const char* suffix : {"", "-wal"}) {
    const std::uintmax_t size = fs::file_size(paths_.store + suffix, error);
    if (!error) bytes += static_cast<double>(size);
  }
  store_bytes_.Set(bytes);
}

}  // namespace muster
