#include "lib/data/file/file_list.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/data/file/data_file.h"
#include "lib/status/status.h"

namespace muster::file_list_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class FileListTest : public testing::Test {
 protected:
  FileListTest() : folder_(absl::StrCat(testing::TempDir(), "/file_list")) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  void Write(const std::string& name, const std::string& text = "x") const {
    const std::string path = Path(name);
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << text;
  }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  // Returns the names of the files, relative to the folder, or the error.
  std::string List(const std::string& path, const FileListOptions& options = {}) const {
    const auto files = ListFiles(Path(path), "data.x.path", options);
    if (!files.ok()) return absl::StrCat(ReasonOf(files.status()), " ", files.status().message());
    return absl::StrJoin(*files, " ", [&](std::string* out, const ListedFile& file) {
      absl::StrAppend(out, absl::StripPrefix(file.path, folder_ + "/"));
    });
  }

  const std::string folder_;
};

TEST_F(FileListTest, AFileStandsForItself) {
  Write("a.tar", "12345");
  EXPECT_EQ(List("a.tar"), "a.tar");
  const auto files = ListFiles(Path("a.tar"), "data.x.path").value();
  EXPECT_EQ(files[0].bytes, 5);
  EXPECT_GT(files[0].modified_ns, 1'000'000'000'000'000'000);
}

TEST_F(FileListTest, AFolderStandsForItsFilesInTheOrderOfNames) {
  for (const char* name : {"b.tar", "a.tar", "B.tar", "a.txt", ".hidden", "in/c.tar"}) Write(name);
  EXPECT_EQ(List(""), "B.tar a.tar a.txt b.tar");
  EXPECT_EQ(List("", {.extension = ".tar"}), "B.tar a.tar b.tar");
  EXPECT_EQ(List("", {.extension = ".tar", .is_recursive = true}), "B.tar a.tar b.tar in/c.tar");
}

TEST_F(FileListTest, APatternMatchesNamesOfOneFolder) {
  for (const char* name :
       {"x-1.tar", "x-2.tar", "x-10.tar", ".x-3.tar", "in/x-4.tar", "x[1].tar"}) {
    Write(name);
  }
  fs::create_directory(Path("x-5.tar"));
  EXPECT_EQ(List("x-?.tar"), "x-1.tar x-2.tar");
  EXPECT_EQ(List("x*.tar"), "x-1.tar x-10.tar x-2.tar x[1].tar");
  EXPECT_EQ(List("*/x-*.tar"), "in/x-4.tar");
  EXPECT_EQ(List("x[?].tar"), "x[1].tar") << "brackets stand for themselves";
}

TEST_F(FileListTest, BracesAreNumbersOrTexts) {
  for (int i = 0; i < 12; ++i) Write(absl::StrCat("s-00", i < 10 ? "0" : "", i, ".tar"));
  for (const char* name : {"v-9.tar", "v-10.tar"}) Write(name);
  EXPECT_EQ(List("s-{0008..0011}.tar"), "s-0008.tar s-0009.tar s-0010.tar s-0011.tar");
  EXPECT_EQ(List("v-{9..10}.tar"), "v-10.tar v-9.tar");
  EXPECT_EQ(List("{s-000{1}.tar"), absl::StrCat("DATA_INVALID data.x.path: ", Path("{s-000{1}.tar"),
                                                ": '{s-000{1}' is no range such as {000..146}, "
                                                "and no list such as {a,b}"));
  EXPECT_EQ(List("{s-0001,v-9,v-*}.tar"), "s-0001.tar v-10.tar v-9.tar") << "each file once";
  EXPECT_THAT(List("s-{0010..0013}.tar"), HasSubstr("s-0012.tar: matches no file"));
  EXPECT_THAT(List("s-{0..99}-{0..99999}-{0..99999}.tar"), HasSubstr("more than 1000000 files"));
  EXPECT_THAT(List("s-{0..999999999999999999}.tar"), HasSubstr("more than 1000000 files"));
}

TEST_F(FileListTest, ANameWithBracesOrStarsIsAFileIfItExists) {
  for (const char* name : {"{1..2}", "*"}) Write(name);
  EXPECT_EQ(List("{1..2}"), "{1..2}");
  EXPECT_EQ(List("*"), "*");
}

TEST_F(FileListTest, AnErrorNamesWhatTheNearestFolderHolds) {
  for (int i = 0; i < 7; ++i) Write(absl::StrCat("shard-", i, ".tar"));
  EXPECT_EQ(List("shard*.tgz"),
            absl::StrCat("DATA_NOT_FOUND data.x.path: ", Path("shard*.tgz"), ": matches no file; ",
                         folder_,
                         " holds shard-0.tar, shard-1.tar, shard-2.tar, shard-3.tar, shard-4.tar "
                         "and 2 more"));
  EXPECT_THAT(List("no/such/folder/x.tar"),
              HasSubstr(absl::StrCat("no such file or folder; ", folder_, " holds shard-0.tar")));
  EXPECT_THAT(List("", {.extension = ".npz"}), HasSubstr("the folder has no .npz file; "));
  fs::create_directory(Path("empty"));
  EXPECT_THAT(List("empty"), HasSubstr("the folder has no file; "));
}

TEST_F(FileListTest, RefusesWhatIsNoRegularFile) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  for (const char* path : {"pipe", "p*", ""}) {
    EXPECT_EQ(List(path),
              absl::StrCat("DATA_INVALID data.x.path: ", Path("pipe"), ": is not a regular file"));
  }
}

TEST_F(FileListTest, AFaultOfTheStorageIsNoMissingFolder) {
  Write("a.tar");
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const absl::Cleanup restore = [&] { setrlimit(RLIMIT_NOFILE, &before); };
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  for (const char* path : {"", "*.tar"}) {
    EXPECT_THAT(List(path), HasSubstr("DATA_UNREADABLE data.x.path: ")) << path;
  }
}

TEST_F(FileListTest, AWatchSeesLongListsAndMayEndThem) {
  for (int i = 0; i < 2500; ++i) Write(absl::StrCat("many/", i));
  for (const char* name : {"few/a/1", "few/b/1"}) Write(name);
  int seen = 0, seen_max = 100;
  const ReadWatch watch([&]() -> absl::Status {
    return ++seen <= seen_max ? absl::OkStatus() : absl::CancelledError("enough");
  });
  List("many");
  EXPECT_EQ(seen, 3);
  seen = 0;
  List("few", {.is_recursive = true});
  EXPECT_EQ(seen, 3) << "the folder and the two in it";
  seen = 0, seen_max = 1;
  EXPECT_EQ(List("many"), "CANCELLED enough");
}

TEST_F(FileListTest, RefusesMoreThanALimitOfFiles) {
  for (const char* name : {"a", "b", "c"}) Write(name);
  EXPECT_EQ(List("", {.files_max = 3}), "a b c");
  EXPECT_THAT(List("", {.files_max = 2}), HasSubstr("more than 2 files"));
  EXPECT_THAT(List("*", {.files_max = 2}), HasSubstr("more than 2 files"));
}

TEST_F(FileListTest, FollowsLinksAndEndsInACycle) {
  Write("in/deep/a");
  Write("b");
  fs::create_symlink(folder_, Path("in/deep/up"));
  fs::create_symlink("in/deep", Path("again"));
  fs::create_symlink("b", Path("c"));
  EXPECT_EQ(List("", {.is_recursive = true}), "again/a b c");
  fs::create_symlink("nothing", Path("dangling"));
  EXPECT_THAT(List(""), HasSubstr("dangling: no such file"));
}

TEST_F(FileListTest, ListsTheFoldersOfAFolder) {
  for (const char* name : {"n02/a", "n01/b", "c", ".git/d"}) Write(name);
  EXPECT_THAT(ListFolders(folder_, "data.x.path").value(), testing::ElementsAre("n01", "n02"));
  EXPECT_EQ(ReasonOf(ListFolders(Path("nope"), "data.x.path").status()), "DATA_NOT_FOUND");
}

}  // namespace
}  // namespace muster::file_list_test
