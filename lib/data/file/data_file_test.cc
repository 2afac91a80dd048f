#include "lib/data/file/data_file.h"

#include <sys/stat.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/status/status.h"

namespace muster::data_file_test {
namespace {

std::string Write(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(testing::TempDir(), "/", name);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string ReadText(const DataFile& file, int64_t offset, size_t bytes) {
  std::string text(bytes, '\0');
  const absl::Status status =
      file.Read(offset, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), bytes));
  return status.ok() ? text : std::string(status.message());
}

TEST(DataFileTest, ReadsBytesByPosition) {
  const auto file = DataFile::Open(Write("read", "0123456789"), "data.x.path").value();
  EXPECT_EQ(file->bytes(), 10);
  EXPECT_GT(file->modified_ns(), 0);
  EXPECT_EQ(ReadText(*file, 3, 4), "3456");
  EXPECT_EQ(ReadText(*file, 0, 10), "0123456789");
  EXPECT_EQ(ReadText(*file, 10, 0), "");
  std::byte rest[8];
  EXPECT_EQ(file->ReadSome(7, rest).value(), 3);
  EXPECT_EQ(file->ReadFirst(4).value(), "0123");
  EXPECT_EQ(file->ReadFirst(int64_t{1} << 40).value(), "0123456789");
}

TEST(DataFileTest, AFileThatShrankIsAnErrorThatNamesThePlace) {
  const std::string path = Write("shrunk", "0123456789");
  const auto file = DataFile::Open(path, "data.x.path").value();
  std::filesystem::resize_file(path, 5);
  std::byte bytes[4];
  const absl::Status status = file->Read(3, bytes);
  EXPECT_EQ(ReasonOf(status), "DATA_TRUNCATED");
  EXPECT_EQ(status.message(), absl::StrCat("data.x.path: ", path,
                                           ": ends at byte 5, before 7; it had 10 bytes when it "
                                           "was opened"));
}

TEST(DataFileTest, OpensRegularFilesAlone) {
  const std::string pipe = absl::StrCat(testing::TempDir(), "/pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, testing::TempDir(), std::string("/nope")}) {
    const auto file = DataFile::Open(path, "data.x.path");
    EXPECT_FALSE(file.ok());
    EXPECT_THAT(std::string(file.status().message()), testing::StartsWith("data.x.path: "))
        << file.status();
  }
}

TEST(DataFileTest, AWatchSeesTheReadsOfItsThreadAndMayEndThem) {
  const std::string path = testing::TempDir() + "/data_file_test_watched";
  std::ofstream(path) << "0123456789";
  const auto file = DataFile::Open(path, "data.test.path").value();
  std::vector<std::byte> some(4);
  int reads = 0;
  {
    const ReadWatch watch([&]() -> absl::Status {
      return ++reads < 3 ? absl::OkStatus() : absl::CancelledError("enough");
    });
    EXPECT_TRUE(file->Read(0, absl::MakeSpan(some)).ok());
    EXPECT_TRUE(file->ReadSome(8, absl::MakeSpan(some)).ok());
    EXPECT_TRUE(absl::IsCancelled(file->Read(0, absl::MakeSpan(some))));
    std::jthread([&] { EXPECT_TRUE(file->Read(0, absl::MakeSpan(some)).ok()); }).join();
  }
  EXPECT_TRUE(file->Read(0, absl::MakeSpan(some)).ok());
  EXPECT_EQ(reads, 3);
}

}  // namespace
}  // namespace muster::data_file_test
