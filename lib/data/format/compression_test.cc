#include "lib/data/format/compression.h"

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/status/status.h"

namespace muster::compression_test {
namespace {

absl::Status CheckFile(const std::string& name, const std::string& content) {
  const std::string path = absl::StrCat(testing::TempDir(), "/", name);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  const auto file = DataFile::Open(path, "data.csv.path");
  return file.ok() ? CheckUncompressed(**file, "data.csv.path") : file.status();
}

TEST(CompressionTest, RefusesACompressedFileWithTheCommandThatConvertsIt) {
  const std::string path = absl::StrCat(testing::TempDir(), "/a.csv");
  const std::string begin = absl::StrCat("data.csv.path: ", path);
  const absl::Status gzip = CheckFile("a.csv.gz", "\x1f\x8b\x08 and so on");
  EXPECT_EQ(gzip.message(),
            absl::StrCat(begin,
                         ".gz: is compressed with gzip, which has no random access; run: muster "
                         "data convert ",
                         path, ".gz ", path));
  EXPECT_EQ(ReasonOf(gzip), "DATA_INVALID");
  EXPECT_EQ(CheckFile("a.csv", "\x28\xb5\x2f\xfd zstd without its suffix").message(),
            absl::StrCat(begin,
                         ": is compressed with zstd, which has no random access; run: muster data "
                         "convert ",
                         path, " OUT"));
}

TEST(CompressionTest, NamesToolsForFormatsThatConvertCannotRead) {
  auto command = [](const std::string& name, const std::string& content) {
    const std::string message(CheckFile(name, content).message());
    return message.substr(message.find("run: ") + 5);
  };
  const std::string folder = testing::TempDir();
  EXPECT_EQ(command("b.bz2", "BZh9 and so on"), absl::StrCat("bzip2 -dk ", folder, "/b.bz2"));
  EXPECT_EQ(command("b.xz", std::string("\xfd\x37zXZ\0 and", 10)),
            absl::StrCat("xz -dk ", folder, "/b.xz"));
  EXPECT_EQ(command("b.lz4", "\x04\x22\x4d\x18 and"), absl::StrCat("lz4 -d ", folder, "/b.lz4"));
}

TEST(CompressionTest, AcceptsOtherFiles) {
  EXPECT_TRUE(CheckFile("c", "").ok());
  EXPECT_TRUE(CheckFile("c", "\x1f").ok());
  EXPECT_TRUE(CheckFile("c", "1,2,3\n").ok());
  EXPECT_TRUE(CheckFile("c", "PK\x03\x04").ok());
}

}  // namespace
}  // namespace muster::compression_test
