#include "cli/data/inspection.h"

#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/admission/spec_check.h"
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
    options_.describe_image = [](absl::Span<const std::byte> file) -> std::string {
      const bool is_image = !file.empty() && file[0] == std::byte{'I'};
      return is_image ? absl::StrCat("JPEG, ", file.size(), " x 1") : "";
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
    section_ = inspection->section;
    return inspection->text;
  }

  // Returns the faults that `muster validate` finds in a job with the last section, or "".
  std::string Faults(const std::string& model) {
    const auto spec = ParseJobFile(
        absl::StrCat("name: inspected\nmodel: {zoo: ", model, "}\n", section_,
                     "training: {epochs: 1, optimizer: {sgd: {learning_rate: 0.1}}}\n"),
        "job");
    if (!spec.ok()) return spec.status().ToString();
    const auto checked = CheckSpec(*spec, {});
    return checked.ok() ? "" : checked.status().ToString();
  }

  const std::string folder_;
  InspectOptions options_;
  std::string section_;  // of the last text
  v1::DataSpec data_;    // that of section_
};

constexpr char kImageModel[] =
    "{name: resnet50, args: {image: 224, classes: 10, blocks: \"1,1,1\", width: 16}}";

TEST_F(InspectionTest, DescribesTfrecordFilesByTheirFeatures) {
  std::string records;
  for (int i = 0; i < 3; ++i) {
    wire::Example example;
    auto& features = *example.mutable_features()->mutable_feature();
    features["image"].mutable_bytes_list()->add_value("I2345");
    features["names"].mutable_bytes_list();
    features["label"].mutable_int64_list()->add_value(7 + i);
    for (int j = 0; j <= i; ++j) features["words"].mutable_int64_list()->add_value(j);
    features["mean"].mutable_float_list()->add_value(0.5);
    AppendTfrecord(example.SerializeAsString(), records);
  }
  EXPECT_EQ(Text(Write("train-00000", records)),
            absl::StrCat("tfrecord: 1 file, ", FormatBytes(std::ssize(records)), "\n", folder_,
                         "/train-00000: 3 records\n"
                         "  image: bytes, 5 long; first: JPEG, 5 x 1\n"
                         "  label: integers, 1 value; first: 7\n"
                         "  mean: floats, 1 value; first: 0.5\n"
                         "  names: bytes\n"
                         "  words: integers, 1 to 3 values; first: 0\n"
                         "  without an input below: mean, names, words\n"));
  const auto& inputs = data_.tfrecord().inputs();
  ASSERT_EQ(inputs.size(), 2);
  EXPECT_EQ(inputs.at("input").image().feature(), "image");
  EXPECT_EQ(inputs.at("target").fixed().feature(), "label");
  EXPECT_EQ(Faults(kImageModel), "");
}

TEST_F(InspectionTest, ProposesAnInputForEachFeatureWithoutAnImage) {
  std::string records;
  for (int i = 0; i < 3; ++i) {
    wire::Example example;
    auto& features = *example.mutable_features()->mutable_feature();
    features["label"].mutable_int64_list()->add_value(7 + i);
    for (int j = 0; j <= i; ++j) features["words"].mutable_int64_list()->add_value(j);
    if (i > 0) features["rare"].mutable_float_list()->add_value(1);
    AppendTfrecord(example.SerializeAsString(), records);
  }
  Text(Write("train-00000", records));
  const auto& inputs = data_.tfrecord().inputs();
  EXPECT_EQ(inputs.at("label").fixed().feature(), "label");
  EXPECT_EQ(inputs.at("words").variable().feature(), "words");
  EXPECT_EQ(inputs.at("rare").variable().feature(), "rare") << "the first Example lacks it";
}

TEST_F(InspectionTest, ProposesOneImageOfTwo) {
  wire::Example example;
  auto& features = *example.mutable_features()->mutable_feature();
  features["left"].mutable_bytes_list()->add_value("I1");
  features["right"].mutable_bytes_list()->add_value("I2");
  features["id"].mutable_int64_list()->add_value(1);
  features["side/label"].mutable_int64_list()->add_value(1);
  std::string records;
  AppendTfrecord(example.SerializeAsString(), records);
  EXPECT_THAT(Text(Write("train", records)), HasSubstr("without an input below: id, right\n"));
  EXPECT_EQ(data_.tfrecord().inputs().at("input").image().feature(), "left");
  EXPECT_EQ(data_.tfrecord().inputs().at("target").fixed().feature(), "side/label");
  EXPECT_EQ(Faults(kImageModel), "");

  const auto archive = [&](const std::string& second) {
    return Write("a.tar", TarMemberBytes("0.l.jpg", "I1") + TarMemberBytes("0.txt", "text") +
                              TarMemberBytes(second, "I2") + TarMemberBytes("1.cls", "3") +
                              TarEnd());
  };
  EXPECT_THAT(Text(archive("0.r.png")), HasSubstr("without an input below: .r.png, .txt\n"));
  EXPECT_EQ(data_.tar().inputs().at("input").extension(), "l.jpg");
  EXPECT_EQ(Faults(kImageModel), "");
  EXPECT_THAT(Text(archive("1.r.png")), HasSubstr("without an input below: .txt\n"));
  EXPECT_EQ(data_.tar().inputs().at("input").extension(), "l.jpg;r.png")
      << "each sample has one of them";
  EXPECT_EQ(Faults(kImageModel), "");
}

TEST_F(InspectionTest, FindsTheTargetOfATarFileByItsContent) {
  const auto proposal = [&](std::vector<std::pair<std::string, std::string>> members) {
    std::string archive;
    for (const auto& [name, bytes] : members) archive += TarMemberBytes("0." + name, bytes);
    Text(Write("a.tar", archive + TarEnd()));
    std::map<std::string, std::string> inputs;
    for (const auto& [name, input] : data_.tar().inputs()) {
      inputs[name] = absl::StrCat(input.extension(), " ", input.kind_case(), input.json().field());
    }
    return absl::StrJoin(inputs, ", ", absl::PairFormatter("="));
  };
  constexpr int kImage = v1::TarInput::kImage, kInteger = v1::TarInput::kInteger,
                kArray = v1::TarInput::kArray, kJson = v1::TarInput::kJson;
  EXPECT_EQ(proposal({{"dat", "I1"}, {"txt", "a"}, {"id", "5"}, {"cls", "6"}}),
            absl::StrCat("input=dat ", kImage, ", target=cls ", kInteger));
  EXPECT_EQ(proposal({{"jpg", "I1"}, {"json", "{\"a\": 1, \"label\": 2}"}, {"txt", "a"}}),
            absl::StrCat("input=jpg ", kImage, ", target=json ", kJson, "label"));
  EXPECT_EQ(proposal({{"jpg", "I1"}, {"json", "{\"url\": \"x\"}"}}),
            absl::StrCat("input=jpg ", kImage));
  EXPECT_EQ(proposal({{"x.npy", "\x93NUMPY1"}, {"y.npy", "\x93NUMPY2"}}),
            absl::StrCat("input=x.npy ", kArray, ", target=y.npy ", kArray));
  EXPECT_EQ(proposal({{"x.npy", "\x93NUMPY1"}, {"y.npy", "\x93NUMPY2"}, {"y", "1"}}),
            absl::StrCat("input=x.npy ", kArray, ", target=y ", kInteger));
  Text(Write("a.tar", TarMemberBytes("0.txt", "text") + TarEnd()));
  EXPECT_EQ(section_, "") << "no input reads text";
}

TEST_F(InspectionTest, QuotesNamesAsYamlDoes) {
  const std::string name = "it's \"ä\" \\ #1: [x]";
  fs::create_directories(absl::StrCat(folder_, "/", name));
  Write(absl::StrCat(name, "/a.csv"), absl::StrCat("\"", "a \"\"é\"\" \\x41, b\",y\n1,2\n"));
  Text(absl::StrCat(folder_, "/", name));
  EXPECT_EQ(data_.csv().path(), absl::StrCat(folder_, "/", name));
  EXPECT_EQ(data_.csv().inputs().at("input").columns(0), "a \"é\" \\x41, b");
  EXPECT_EQ(Faults("{name: linear}"), "");
}

TEST_F(InspectionTest, DescribesAFolderOfTarFiles) {
  Write("b.tar", "");
  Write("README", "");
  const std::string first =
      Write("a.tar", TarMemberBytes("0.jpg", "I234") + TarMemberBytes("0.cls", "7\n") +
                         TarMemberBytes("0.txt", "a cat") + TarMemberBytes("1.jpg", "I23") +
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
  EXPECT_EQ(Faults(kImageModel), "");

  Write("README", "text");
  Text(folder_);
  EXPECT_EQ(data_.tar().path(), folder_) << "workers read the archives of a folder alone";
  Text(folder_ + "/*");
  EXPECT_EQ(data_.tar().path(), folder_ + "/*.tar");
}

TEST_F(InspectionTest, DescribesFoldersOfImages) {
  Write("n01/a", "I2");
  Write("n01/b.jpg", "I");
  Write("n02/a.jpg", "123");
  fs::create_directory(folder_ + "/n03");
  const std::string text = Text(folder_);
  EXPECT_THAT(text, HasSubstr("images: 3 class folders of 0 to 2 files, "));
  EXPECT_THAT(text, HasSubstr("n01/a: 2 bytes, JPEG, 2 x 1\n"));
  EXPECT_THAT(text, HasSubstr("n02/a.jpg: is no image"));
  EXPECT_THAT(text, HasSubstr("n03: has no file"));
  EXPECT_EQ(data_.images().path(), folder_);
  EXPECT_THAT(Faults(kImageModel), HasSubstr("n03: the folder of a class has no file"));
  Write("n03/a", "I");
  EXPECT_EQ(Faults(kImageModel), "");
}

TEST_F(InspectionTest, AFolderMayLieBesideOtherData) {
  Write("a.csv", "1,2\n");
  Write("logs/today", "text");
  EXPECT_THAT(Text(folder_), HasSubstr("csv: 1 file, "));
}

TEST_F(InspectionTest, DescribesNpyFiles) {
  std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }";
  header.resize(117, ' ');
  const std::string path =
      Write("labels.npy",
            absl::StrCat(absl::string_view("\x93NUMPY\x01\x00\x76\x00", 10), header, "\n\1\2\3"));
  EXPECT_EQ(Text(path), absl::StrCat("npy: 1 file, 131 B\n", path, ": u8[3]; first: 1, 2, 3\n"));
  EXPECT_EQ(data_.npy().inputs().at("labels"), path);
  EXPECT_EQ(data_.batch_size(), 3) << "there are no more samples";
  const auto array =
      absl::StrCat(absl::string_view("\x93NUMPY\x01\x00\x76\x00", 10), header, "\n\1\2\3");
  for (int i = 0; i < 65; ++i) Write(absl::StrCat("many/", i, ".npy"), array);
  EXPECT_THAT(Text(folder_ + "/many"),
              AllOf(HasSubstr("and 1 more\nIf each file is a sample: muster data convert "),
                    HasSubstr("/many samples.npy\n")));
  EXPECT_EQ(section_, "") << "a model has at most 64 inputs";
}

TEST_F(InspectionTest, DescribesColumnsOfText) {
  const std::string path = Write("a.csv", "x,name,y\n1.5,cat,0\n2,dog,1\n");
  EXPECT_THAT(Text(path), AllOf(HasSubstr("2 lines, a header, 3 columns, separated by commas"),
                                HasSubstr("  x: number; first: 1.5\n"),
                                HasSubstr("  name: text; first: cat\n")));
  EXPECT_EQ(data_.csv().inputs().at("input").columns(0), "x");
  EXPECT_EQ(data_.csv().inputs().at("target").columns(0), "y");
  EXPECT_EQ(Faults("{name: linear}"), "");
  EXPECT_THAT(Text(Write("b.tsv", "1\t2\n")),
              HasSubstr("1 line, no header, 2 columns, separated by tabs"));
  std::string large = "a,b\n";
  for (int i = 0; i < 50'000; ++i) large += "1,2\n";
  EXPECT_THAT(Text(Write("c.csv", large)), HasSubstr("about 4999"));
}

TEST_F(InspectionTest, ReadsQuotedFieldsAndOtherSeparators) {
  EXPECT_THAT(
      Text(Write("q.csv", "id,\"name, first\",y\n1,\"a\n\"\"b\"\"\",\"2\"\n,c,3\n")),
      AllOf(HasSubstr("2 lines, a header, 3 columns"), HasSubstr("  id: number; first: 1\n"),
            HasSubstr("  name, first: text; first: a\\n\\\"b\\\"\n"),
            HasSubstr("  y: number; first: 2\n")));
  EXPECT_THAT(Text(Write("open.csv", "a,b\n\"1,2\n")), HasSubstr("a quote is not closed"));
  EXPECT_THAT(Text(Write("s.csv", "a;b\n1;2\n")), HasSubstr("separated by semicolons"));
  EXPECT_EQ(data_.csv().separator(), ";");
  EXPECT_EQ(Faults("{name: linear}"), "");
  EXPECT_THAT(Text(Write("windows.csv", "a,b\r\n1,2\r\n3,4\r\n")), HasSubstr("csv: 2 lines, a"));
  EXPECT_THAT(Text(Write("t.csv", "a\tb\n1\t2\n")), HasSubstr("separated by tabs"));
  EXPECT_EQ(data_.csv().separator(), "\t");
  EXPECT_EQ(Faults("{name: linear}"), "");
}

TEST_F(InspectionTest, ProposesColumnsOfNumbersAlone) {
  EXPECT_THAT(Text(Write("a.csv", "x,late,y,name\n1,2,3,a\n1,b,3,a\n")),
              HasSubstr("  late: text; first: 2\n"));
  const auto columns = [&](const char* input) {
    return absl::StrJoin(data_.csv().inputs().at(input).columns(), " ");
  };
  EXPECT_EQ(columns("input"), "x");
  EXPECT_EQ(columns("target"), "y");
  Text(Write("b.csv", "1,2,a,4,5,6\n"));
  EXPECT_EQ(columns("input"), "1-2 4-5");
  EXPECT_EQ(columns("target"), "6");
  EXPECT_EQ(Faults("{name: linear, args: {inputs: 4}}"), "");
  Text(Write("c.csv", "x,x,\n1,2,3\n"));
  EXPECT_EQ(columns("input"), "1 2") << "their names are equal";
  EXPECT_EQ(columns("target"), "3") << "it has no name";
  EXPECT_TRUE(data_.csv().header());
  Text(Write("d.csv", "name\na\n"));
  EXPECT_EQ(section_, "");
  // A job would read the README, too.
  Write("both/README", "text");
  Write("both/e.csv", "x,y\n1,2\n");
  Text(folder_ + "/both");
  EXPECT_EQ(data_.csv().path(), folder_ + "/both/*.csv");
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
  EXPECT_THAT(Text(Write("a.txt.gz", "\x1f\x8b...")), HasSubstr("muster data convert"));
  EXPECT_THAT(Text(Write("a.csv.gz", "\x1f\x8b...")), HasSubstr("muster data convert"));
  EXPECT_THAT(Text(Write("a.jpg", "I...")), HasSubstr("a.jpg: 4 bytes, JPEG, 4 x 1\n"));
  EXPECT_THAT(Text(folder_ + "/nope"), HasSubstr("no such file or folder"));
  EXPECT_THAT(Text(Write("a.tar.gz", "\x1f\x8b...")), HasSubstr("muster data convert"));
}

}  // namespace
}  // namespace muster::cli::inspection_test
