#include "lib/data/format/tfrecord.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/data/file/data_file.h"
#include "lib/status/status.h"

namespace muster::tfrecord_test {
namespace {

using Check = TfrecordScanner::Check;

std::shared_ptr<const DataFile> FileOf(const std::string& content,
                                       const std::string& name = "file.tfrecord") {
  const std::string path = absl::StrCat(testing::TempDir(), "/", name);
  std::ofstream(path, std::ios::binary) << content;
  return DataFile::Open(path, "data.tfrecord.path").value();
}

std::string Records(const std::vector<std::string>& records) {
  std::string file;
  for (const std::string& record : records) AppendTfrecord(record, file);
  return file;
}

// Returns the records, and the error after them if there is one.
std::vector<std::string> Scan(const std::string& content, Check check = Check::kChecksum) {
  const auto file = FileOf(content);
  TfrecordScanner scanner(*file, "data.tfrecord.path");
  std::vector<std::string> records;
  for (;;) {
    const absl::StatusOr<bool> next = scanner.Next();
    if (!next.ok()) records.push_back(absl::StrCat("error: ", next.status().message()));
    if (!next.ok() || !*next) return records;
    const auto data = scanner.Data(check);
    if (!data.ok()) {
      records.push_back(absl::StrCat("error: ", data.status().message()));
    } else {
      records.emplace_back(reinterpret_cast<const char*>(data->data()), data->size());
    }
  }
}

// The error of a file that has the one record "0123456789" after a change.
std::string Fault(const std::string& content) {
  const std::vector<std::string> records = Scan(content);
  const std::string path = absl::StrCat(testing::TempDir(), "/file.tfrecord: ");
  if (records.empty()) return "no error";
  std::string fault = records.back();
  const std::string begin = absl::StrCat("error: data.tfrecord.path: ", path);
  EXPECT_TRUE(absl::StartsWith(fault, begin)) << fault;
  return fault.substr(std::min(fault.size(), begin.size()));
}

// Made with Python's struct and a CRC by bits, after the format's description in
// tensorflow/core/lib/io/record_writer.h.
TEST(TfrecordTest, WritesTheBytesOfTensorflow) {
  EXPECT_EQ(absl::BytesToHexString(Records({"muster", ""})),
            "06000000000000007369d5376d75737465720abb160a000000000000000029039807d8ea82a2");
}

TEST(TfrecordTest, FindsRecordsOfAllSizes) {
  std::mt19937 random(1);
  std::vector<std::string> records;
  for (size_t bytes : {10, 0, 1, 300'000, 5, 262'144 - 16, 40'000, 40'000, 12, 1'000'000, 3}) {
    std::string& record = records.emplace_back(bytes, '\0');
    for (char& byte : record) byte = static_cast<char>(random());
  }
  EXPECT_EQ(Scan(Records(records)), records);
  EXPECT_EQ(Scan(Records(records), Check::kNone), records);
  EXPECT_TRUE(Scan("").empty());
}

TEST(TfrecordTest, TellsWhereRecordsAre) {
  const auto file = FileOf(Records({"0123456789", std::string(50'000, 'x'), "end"}));
  TfrecordScanner scanner(*file, "data.tfrecord.path");
  std::vector<std::string> places;
  while (scanner.Next().value()) {
    places.push_back(absl::StrCat(scanner.record(), " ", scanner.offset(), " ", scanner.bytes()));
  }
  EXPECT_THAT(places, testing::ElementsAre("0 12 10", "1 38 50000", "2 50054 3"));
}

TEST(TfrecordTest, ADamagedRecordIsNamedAndTheNextOneIsFound) {
  std::string content = Records({"0123456789", "abc", "the end"});
  content[26 + 12] ^= 1;
  const std::string path = absl::StrCat(testing::TempDir(), "/file.tfrecord");
  EXPECT_THAT(Scan(content), testing::ElementsAre("0123456789",
                                                  absl::StrCat("error: data.tfrecord.path: ", path,
                                                               ": record 1 at byte 26: the "
                                                               "checksum differs"),
                                                  "the end"));
  EXPECT_THAT(Scan(content, Check::kNone), testing::ElementsAre("0123456789", "`bc", "the end"));
}

TEST(TfrecordTest, NoRecordIsFoundAfterADamagedHeader) {
  std::string content = Records({"0123456789", "abc", "the end"});
  content[26] ^= 1;
  EXPECT_EQ(Fault(content), "record 1 at byte 26: the checksum of the length differs");
  EXPECT_EQ(Scan(content).size(), 2);
  content = Records({"0123456789"});
  content[9] ^= 1;
  EXPECT_EQ(Fault(content),
            "record 0 at byte 0: the checksum of the length differs; check that this is a TFRecord "
            "file");
}

TEST(TfrecordTest, AFileThatEndsWithinARecordIsDamaged) {
  const std::string content = Records({"0123456789", "abc"});
  EXPECT_EQ(Fault(content.substr(0, 30)),
            "record 1 at byte 26: the file ends after 4 bytes of a header");
  EXPECT_EQ(Fault(content.substr(0, 44)),
            "record 1 at byte 26: the file ends within the record: it has 19 bytes with its "
            "checksums, 18 are left");
  for (size_t cut = 1; cut < content.size(); ++cut) {
    if (cut != 26) Fault(content.substr(0, cut));
  }
}

TEST(TfrecordTest, ARecordHasAtMostOneGibibyte) {
  // The header of a record of 2^30 + 1 bytes, and one of 2^64 - 1 bytes.
  EXPECT_EQ(Fault(absl::HexStringToBytes("010000400000000063cf8aec")),
            "record 0 at byte 0: the record has 1073741825 bytes, at most 1073741824 are allowed");
  EXPECT_EQ(Fault(absl::HexStringToBytes("ffffffffffffffffa67b113a")),
            "record 0 at byte 0: the record has 18446744073709551615 bytes, at most 1073741824 are "
            "allowed");
}

TEST(TfrecordTest, ACompressedFileIsRefusedWithTheCommandToConvertIt) {
  EXPECT_THAT(Fault("\x1f\x8b\x08 gzip, and more bytes"),
              testing::HasSubstr("is compressed with gzip, which has no random access; run: muster "
                                 "data convert "));
  EXPECT_THAT(Fault("\x1f\x8b\x08"), testing::HasSubstr("is compressed with gzip"));
  EXPECT_THAT(Fault("\x28\xb5\x2f\xfd zstd, and more bytes"),
              testing::HasSubstr("is compressed with zstd"));
  // The length of this record has the first bytes of gzip.
  EXPECT_EQ(Scan(Records({std::string(0x088b1f, 'x')})).at(0).size(), 0x088b1f);
}

TEST(TfrecordTest, AFileThatShrinksIsAnError) {
  const auto file = FileOf(Records(
      {std::string(100'000, 'x'), std::string(100'000, 'x'), std::string(100'000, 'x'), "x"}));
  TfrecordScanner scanner(*file, "data.tfrecord.path");
  ASSERT_TRUE(scanner.Next().value());
  std::filesystem::resize_file(file->path(), 50'000);
  absl::StatusOr<bool> next = true;
  while (next.ok() && *next) next = scanner.Next();
  EXPECT_EQ(ReasonOf(next.status()), "DATA_TRUNCATED") << next.status();
}

}  // namespace
}  // namespace muster::tfrecord_test
