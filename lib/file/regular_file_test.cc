#include "lib/file/regular_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

namespace muster::regular_file_test {
namespace {

TEST(RegularFileTest, OpensOnlyRegularFiles) {
  const std::string folder = ::testing::TempDir();
  const std::string file = folder + "/file", link = folder + "/link", pipe = folder + "/pipe";
  std::ofstream(file) << "content";
  ASSERT_EQ(symlink(file.c_str(), link.c_str()), 0);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);

  for (const std::string& path : {file, link}) {
    const OpenedFile opened = OpenRegularFile(path);
    ASSERT_GE(opened.descriptor, 0) << path;
    char content[8] = "";
    EXPECT_EQ(read(opened.descriptor, content, sizeof(content)), 7) << path;
    close(opened.descriptor);
  }
  for (const std::string& path : {pipe, folder, std::string("/dev/zero")}) {
    const OpenedFile opened = OpenRegularFile(path);
    EXPECT_LT(opened.descriptor, 0) << path;
    EXPECT_EQ(opened.error_number, 0) << path;
  }
  EXPECT_EQ(OpenRegularFile(folder + "/none").error_number, ENOENT);
}

TEST(RegularFileTest, PathFaultNamesTheAbsolutePathAndTheMachine) {
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  const std::string end = std::string(": no such file or directory on ") + host;
  EXPECT_EQ(PathFault("/no/such/file", ENOENT), "/no/such/file" + end);
  EXPECT_EQ(PathFault("./x/../file", ENOENT),
            std::filesystem::current_path().string() + "/file" + end);
}

}  // namespace
}  // namespace muster::regular_file_test
