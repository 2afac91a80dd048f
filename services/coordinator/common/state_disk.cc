#include "services/coordinator/common/state_disk.h"

#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

namespace muster {

namespace fs = std::filesystem;

StateDisk::StateDisk(Paths paths, Metrics& metrics, Space space)
    : paths_(std::move(paths)),
      space_(std::move(space)),
      free_(
          metrics.Gauge("muster_state_free_bytes",
                        "What the fullest file system among those of --state_dir, of its jobs and "
                        "of the store has left for this process.")),
      size_(metrics.Gauge("muster_state_size_bytes", "Size of that file system.")),
      store_bytes_(
          metrics.Gauge("muster_store_bytes", "What the store takes, with its write-ahead log.")) {
  Look();
  // Not earlier: a disk may take longer to answer than one interval.
  repeater_.emplace(kInterval, [this] { Look(); });
}

// If no file system can be read, the first two gauges keep their values. A file of the store that
// cannot be read counts as empty.
void StateDisk::Look() {
  std::error_code error;
  double least = 2;  // more than any share
  for (const std::string& path :
       {paths_.folder, paths_.folder + "/jobs", fs::path(paths_.store).parent_path().string()}) {
    const fs::space_info space = space_(path, error);
    if (error || space.capacity == 0) continue;
    const double part = static_cast<double>(space.available) / static_cast<double>(space.capacity);
    if (part >= least) continue;
    least = part;
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
