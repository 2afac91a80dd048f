#include "lib/data/data_fault.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "lib/file/beneath.h"
#include "lib/status/status.h"

namespace muster::data_fault_test {
namespace {

namespace fs = std::filesystem;

TEST(DataFaultTest, OpensFilesBeneathTheDataRootsOnly) {
  const std::string home = fs::canonical(::testing::TempDir()).string() + "/data_fault";
  fs::create_directories(home + "/root");
  std::ofstream(home + "/root/samples") << "x";
  std::ofstream(home + "/secret") << "x";
  fs::create_symlink("../secret", home + "/root/link");
  SetDataRoots({home + "/root"});

  const auto file = OpenDataFile(home + "/root/samples", "data.text.path");
  ASSERT_TRUE(file.ok()) << file.status();
  close(*file);
  for (const char* name : {"/secret", "/root/link", "/none"}) {
    const absl::Status refused = OpenDataFile(home + name, "data.text.path").status();
    EXPECT_EQ(ReasonOf(refused), "PATH_NOT_ALLOWED") << refused;
    EXPECT_TRUE(absl::StartsWith(refused.message(), "data.text.path: " + home + name + ": lies in"))
        << refused;
  }
  EXPECT_EQ(ReasonOf(OpenDataFile(home + "/root/none", "data.text.path").status()),
            "DATA_NOT_FOUND");
  SetDataRoots({});
}

}  // namespace
}  // namespace muster::data_fault_test
