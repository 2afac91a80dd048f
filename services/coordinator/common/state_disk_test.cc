#include "services/coordinator/common/state_disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "absl/container/flat_hash_map.h"

namespace muster::state_disk_test {
namespace {

using ::testing::HasSubstr;

// Checkpoints fill their volume first, and the store may be on another one.
TEST(StateDiskTest, ExportsTheFullestFileSystem) {
  absl::flat_hash_map<std::string, int> left = {{"/state", 900}, {"/state/jobs", 30}, {"/db", 500}};
  const auto space = [&](const std::string& path, std::error_code& error) {
    error.clear();
    const auto found = left.find(path);
    if (found == left.end()) error = std::make_error_code(std::errc::no_such_file_or_directory);
    std::filesystem::space_info info = {};
    info.capacity = path == "/state" ? 10000 : 1000;
    info.available = found == left.end() ? 0 : found->second;
    return info;
  };
  const auto rendered = [&] {
    Metrics metrics;
    const StateDisk disk({.folder = "/state", .store = "/db/coordinator.db"}, metrics, space);
    return metrics.Render();
  };

  EXPECT_THAT(rendered(), HasSubstr("muster_state_free_bytes 30\n"));
  EXPECT_THAT(rendered(), HasSubstr("muster_state_size_bytes 1000\n"));

  left["/db"] = 1;
  EXPECT_THAT(rendered(), HasSubstr("muster_state_free_bytes 1\n"));

  left.erase("/db");  // etcd, or a store without a known size
  left.erase("/state/jobs");
  EXPECT_THAT(rendered(), HasSubstr("muster_state_free_bytes 900\n"));
  EXPECT_THAT(rendered(), HasSubstr("muster_state_size_bytes 10000\n"));
}

}  // namespace
}  // namespace muster::state_disk_test
