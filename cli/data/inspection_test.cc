#include "cli/data/inspection.h"

#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/data/format/tar_bytes.h"
#include "lib/data/format/testing/example.pb.h"
#include "lib/data/format/tfrecord.h"
#include "lib/data/format/zip_writer.h"
#include "lib/job/job_file.h"
#include "lib/status/status.h"
#include "lib/text/byte_size.h"

namespace muster::cli::inspection_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class InspectionTest : public testing::Test {
 protected:
  InspectionTest() : folder_(absl::StrCat(testing::TempDir(), "/inspection")) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    options_.describe_image = [](absl::Span<const std::byte> file) {
      return absl::StrCat("JPEG, ", file.size(), " x 1");
    };
  }

  std::string Write(const std::string& name, const std::string& bytes) const {
    const std::string path = absl::StrCat(folder_, "/", name);
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  // Returns the text. Checks that a job file accepts the section.
  std::string Text(const std::string& path) {
    const auto inspection = Inspect(path, options_);
    if (!inspection.ok()) return std::string(inspection.status().message());
    if (!inspection->section.empty()) {
      const auto spec = ParseJobFile(inspection->section, "section");
      EXPECT_TRUE(spec.ok()) << spec.status() << "\n" << inspection->section;
      if (spec.ok()) data_ = spec->data();
    }
    return inspection->text;
  }

  const std::string folder_;
  InspectOptions options_;
  v1::DataSpec data_;  // the section of the last text
};

TEST_F(InspectionTest, DescribesTfrecordFilesByTheirFeatures) {
  std::string records;
  for (int i = 0; i < 3; ++i) {
    wire::Example example;
    auto& features = *example.mutable_features()->mutable_feature();
    features["image"].mutable_bytes_list()->add_value("12345");
    features["label"].mutable_int64_list()->add_value(7 + i);
    for (int j = 0; j <= i; ++j) features["words"].mutable_int64_list()->add_value(j);
    features["mean"].mutable_float_list()->add_value(0.5);
    AppendTfrecord(example.SerializeAsString(), records);
  }
  EXPECT_EQ(Text(Write("train-00000", records)),
            absl::StrCat("tfrecord: 1 file, ", FormatBytes(std::ssize(records)), "\n", folder_,
                         "/train-00000: 3 records\n"
                         "  image: bytes, 5 long; first: JPEG, 5 x 1\n"
                         "  label: integers, 1 values; first: 7\n"
                         "  mean: floats, 1 values; first: 0.5\n"
                         "  words: integers, 1 to 3 values; first: 0\n"));
  const auto& inputs = data_.tfrecord().inputs();
  EXPECT_EQ(inputs.at("input").image().feature(), "image");
  EXPECT_EQ(inputs.at("label").fixed().feature(), "label");
  EXPECT_TRUE(inputs.at("words").has_variable());
}

TEST_F(InspectionTest, DescribesAFolderOfTarFiles) {
  Write("b.tar", "");
  Write("README", "");
  const std::string first =
      Write("a.tar", TarMemberBytes("0.jpg", "1234") + TarMemberBytes("0.cls", "7\n") +
                         TarMemberBytes("0.txt", "a cat") + TarMemberBytes("1.jpg", "123") +
                         TarMemberBytes("1.cls", "12") + TarMemberBytes("1.txt", "b") + TarEnd());
  EXPECT_THAT(Text(folder_),
              AllOf(HasSubstr("tar: 2 files, "), HasSubstr(first + ": 2 samples\n"),
                    HasSubstr("  .cls: 2 members of 2 to 2 bytes; first: 7; 12\n"),
                    HasSubstr("  .jpg: 2 members of 3 to 4 bytes; first: JPEG, 4 x 1; JPEG, 3 x 1"),
                    HasSubstr("  .txt: 2 members of 1 to 5 bytes; first: a cat; b\n")));
  ASSERT_EQ(data_.tar().inputs_size(), 2);
  EXPECT_EQ(data_.tar().path(), folder_);
  EXPECT_TRUE(data_.tar().inputs().at("input").has_image());
  EXPECT_TRUE(data_.tar().inputs().at("target").has_integer());
}

TEST_F(InspectionTest, DescribesFoldersOfImages) {
  Write("n01/a.jpg", "12");
  Write("n01/b.jpg", "1");
  Write("n02/a.txt", "123");
  const std::string text = Text(folder_);
  EXPECT_THAT(text, HasSubstr("images: 2 class folders of 1 to 2 files, "));
  EXPECT_THAT(text, HasSubstr("2 have the name of an image and 1 another"));
  EXPECT_THAT(text, HasSubstr("n01/a.jpg: 2 bytes, JPEG, 2 x 1\n"));
  EXPECT_EQ(data_.images().path(), folder_);
  EXPECT_GT(data_.image().train_size(), 0);
}

TEST_F(InspectionTest, DescribesNpyFiles) {
  std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }";
  header.resize(117, ' ');
  const std::string path =
      Write("labels.npy",
            absl::StrCat(absl::string_view("\x93NUMPY\x01\x00\x76\x00", 10), header, "\n\1\2\3"));
  EXPECT_EQ(Text(path), absl::StrCat("npy: 1 file\n", path, ": u8[3]; first: 1, 2, 3\n"));
  EXPECT_EQ(data_.npy().inputs().at("labels"), path);
}

TEST_F(InspectionTest, DescribesColumnsOfText) {
  const std::string path = Write("a.csv", "x,name,y\n1.5,cat,0\n2,dog,1\n");
  EXPECT_THAT(Text(path), AllOf(HasSubstr("2 lines, a header, 3 columns, separated by commas"),
                                HasSubstr("  x: number; first: 1.5\n"),
                                HasSubstr("  name: text; first: cat\n")));
  EXPECT_EQ(data_.csv().inputs().at("input").columns(0), "x");
  EXPECT_EQ(data_.csv().inputs().at("target").columns(0), "y");
  EXPECT_THAT(Text(Write("b.tsv", "1\t2\n")),
              HasSubstr("1 line, no header, 2 columns, separated by tabs"));
  std::string large = "a,b\n";
  for (int i = 0; i < 50'000; ++i) large += "1,2\n";
  EXPECT_THAT(Text(Write("c.csv", large)), HasSubstr("about 4999"));
}

TEST_F(InspectionTest, DescribesTheArraysOfAnNpzFile) {
  std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }";
  header.resize(117, ' ');
  const std::string array = absl::StrCat(absl::string_view("\x93NUMPY\x01\x00\x76\x00", 10), header,
                                         "\n", std::string(12, '\1'));
  ZipWriter writer;
  const auto crc = static_cast<uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(array.data()), static_cast<uInt>(array.size())));
  const std::string begin = writer.Next("ids.npy", crc, array.size());
  EXPECT_EQ(Text(Write("a.npz", begin + array + writer.End())), "npz: 1 array\n  ids: i32[3]\n");
  EXPECT_EQ(data_.npz().inputs().at("ids"), "ids");
}

TEST_F(InspectionTest, AnUnknownFormatNamesTheKnownOnes) {
  EXPECT_THAT(Text(Write("a.bin", "x")), HasSubstr("a.bin: the format is unknown; known are .tar"));
  EXPECT_THAT(Text(folder_ + "/nope"), HasSubstr("no such file or folder"));
  EXPECT_THAT(Text(Write("a.tar.gz", "\x1f\x8b...")), HasSubstr("muster data convert"));
}

}  // namespace
}  // namespace muster::cli::inspection_test
