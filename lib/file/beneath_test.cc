#include "lib/file/beneath.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace muster::beneath_test {
namespace {

namespace fs = std::filesystem;

using Open = OpenedFile (*)(absl::Span<const std::string>, const std::string&);

// Both ways to open: by openat2, and without it.
class BeneathTest : public ::testing::TestWithParam<Open> {
 protected:
  BeneathTest() {
    EXPECT_NE(mkdtemp(home_.data()), nullptr);
    home_ = fs::canonical(home_).string();
    for (const char* folder : {"/data", "/data/a", "/data/v1", "/more", "/database"}) {
      fs::create_directory(home_ + folder);
    }
    Write("/secret", "secret");
    Write("/data/a/file", "data");
    Write("/data/v1/file", "data");
    Write("/more/file", "more");
    Write("/database/file", "database");
  }

  void Write(const std::string& path, const std::string& text) {
    std::ofstream(home_ + path) << text;
  }

  // Returns the content of the file, or the name of the error.
  std::string Read(const std::string& path) {
    const OpenedFile file = GetParam()({home_ + "/data", home_ + "/more"}, home_ + path);
    if (file.descriptor < 0) {
      return file.error_number == 0 ? "not regular" : strerrorname_np(file.error_number);
    }
    char text[16] = "";
    EXPECT_GE(read(file.descriptor, text, sizeof(text) - 1), 0);
    close(file.descriptor);
    return text;
  }

  std::string home_ = ::testing::TempDir() + "/beneath-XXXXXX";
};

TEST_P(BeneathTest, OpensRegularFilesBeneathTheRootsOnly) {
  ASSERT_EQ(mkfifo((home_ + "/data/pipe").c_str(), 0600), 0);
  EXPECT_EQ(Read("/data/a/file"), "data");
  EXPECT_EQ(Read("/data/a/../a/./file"), "data");
  EXPECT_EQ(Read("/data//a//file"), "data");
  EXPECT_EQ(Read("/data/../more/file"), "more");
  EXPECT_EQ(Read("/data/pipe"), "not regular");
  EXPECT_EQ(Read("/data"), "not regular");
  EXPECT_EQ(Read("/data/none"), "ENOENT");
  for (const char* path : {"/secret", "/database/file", "/data/../secret", "/none", "",
                           "/data/a/../../secret", "/data/../none"}) {
    EXPECT_EQ(Read(path), "EXDEV") << path;
  }
}

TEST_P(BeneathTest, FollowsLinksThatEndBeneathARoot) {
  // As Kubernetes mounts a ConfigMap: file -> ..data/file, ..data -> ..2026_01_01
  fs::create_symlink("v1", home_ + "/data/..data");
  fs::create_symlink("..data/file", home_ + "/data/mounted");
  fs::create_symlink(home_ + "/data/a/file", home_ + "/data/absolute");
  fs::create_symlink(home_ + "/more/file", home_ + "/data/other_root");
  fs::create_symlink("../../more/file", home_ + "/data/a/relative");
  fs::create_symlink(home_ + "/data", home_ + "/way");
  EXPECT_EQ(Read("/data/mounted"), "data");
  EXPECT_EQ(Read("/data/..data/file"), "data");
  EXPECT_EQ(Read("/data/absolute"), "data");
  EXPECT_EQ(Read("/data/other_root"), "more");
  EXPECT_EQ(Read("/data/a/relative"), "more");
  EXPECT_EQ(Read("/way/a/file"), "data") << "a link outside that leads into a root";
}

TEST_P(BeneathTest, FollowsNoLinkOutOfTheRoots) {
  fs::create_symlink("../secret", home_ + "/data/relative");
  fs::create_symlink(home_ + "/secret", home_ + "/data/absolute");
  fs::create_symlink(home_ + "/database", home_ + "/data/folder");
  fs::create_symlink(home_ + "/none", home_ + "/data/dangling");
  fs::create_symlink("absolute", home_ + "/data/chain");
  fs::create_symlink("loop", home_ + "/data/loop");
  fs::create_symlink("/proc/self/fd/0", home_ + "/data/magic");
  for (const char* path :
       {"/data/relative", "/data/absolute", "/data/folder/file", "/data/chain", "/data/dangling",
        "/data/loop", "/data/magic", "/data/folder/../secret"}) {
    EXPECT_EQ(Read(path), "EXDEV") << path;
  }
}

// Exchanges a file, or a folder on the way to it, with a link to a secret while it is opened.
TEST_P(BeneathTest, ASwappedLinkNeverLeadsOut) {
  fs::create_symlink(home_ + "/secret", home_ + "/data/evil");
  fs::create_directory(home_ + "/data/good");
  Write("/data/good/secret", "data");
  fs::create_symlink(home_, home_ + "/data/evil_folder");
  Write("/data/target", "data");
  std::atomic<bool> stop = false;
  const auto swap = [&](const std::string& a, const std::string& b) {
    renameat2(AT_FDCWD, (home_ + a).c_str(), AT_FDCWD, (home_ + b).c_str(), RENAME_EXCHANGE);
  };
  std::thread attacker([&] {
    while (!stop) {
      swap("/data/target", "/data/evil");
      swap("/data/good", "/data/evil_folder");
    }
  });
  for (int i = 0; i < 2'000; ++i) {
    ASSERT_NE(Read("/data/target"), "secret");
    ASSERT_NE(Read("/data/good/secret"), "secret");
  }
  stop = true;
  attacker.join();
}

INSTANTIATE_TEST_SUITE_P(Both, BeneathTest,
                         ::testing::Values(&OpenBeneath, &internal::OpenBeneathByComponents));

TEST(DataRootsTest, FilesOfSamplesLieBeneathTheRootsOfTheProcess) {
  const std::string home = fs::canonical(::testing::TempDir()).string();
  fs::create_directory(home + "/root");
  std::ofstream(home + "/root/inside") << "x";
  std::ofstream(home + "/outside") << "x";
  const auto can_open = [&](const std::string& name) {
    const OpenedFile file = OpenRegularDataFile(home + name);
    if (file.descriptor >= 0) close(file.descriptor);
    return file.descriptor >= 0;
  };
  EXPECT_TRUE(can_open("/outside"));
  SetDataRoots({home + "/root"});
  EXPECT_TRUE(can_open("/root/inside"));
  EXPECT_FALSE(can_open("/outside"));
  SetDataRoots({"/"});
  EXPECT_TRUE(can_open("/outside"));
  SetDataRoots({});
}

}  // namespace
}  // namespace muster::beneath_test
