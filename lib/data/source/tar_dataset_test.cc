#include "lib/data/source/tar_dataset.h"

#include <malloc.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/data/format/tar_bytes.h"
#include "lib/data/sample_bytes.h"
#include "lib/data/source/fake_image_rows.h"
#include "lib/data/source/image_graph.h"
#include "lib/status/status.h"

namespace muster::tar_dataset_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

std::string Image(char value) { return absl::StrCat("IMG", std::string(1, value)); }

std::string Npy(absl::string_view descr, absl::string_view shape, absl::string_view data) {
  std::string text =
      absl::StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (", shape, "), }");
  text.resize(117, ' ');
  return absl::StrCat(absl::string_view("\x93NUMPY\x01\x00\x76\x00", 10), text, "\n", data);
}

class TarDatasetTest : public testing::Test {
 protected:
  TarDatasetTest() : folder_(absl::StrCat(testing::TempDir(), "/tar_dataset")) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    spec_.mutable_tar()->set_path(folder_);
    v1::TarInput& input = (*spec_.mutable_tar()->mutable_inputs())["input"];
    input.set_extension("jpg;png");
    input.mutable_image();
    v1::TarInput& target = (*spec_.mutable_tar()->mutable_inputs())["target"];
    target.set_extension("cls");
    target.mutable_integer();
  }

  void Write(const std::string& name, const std::string& members) const {
    std::ofstream(absl::StrCat(folder_, "/", name), std::ios::binary) << members << TarEnd();
  }

  // A sample of an image and a class.
  static std::string Sample(const std::string& base, char value, const std::string& label) {
    return TarMemberBytes(base + ".jpg", Image(value)) + TarMemberBytes(base + ".cls", label);
  }

  absl::StatusOr<std::unique_ptr<const Dataset>> Open(const DataOptions& options = {}) const {
    return OpenTarDataset(spec_, ImageGraph(/*classes=*/10), options, FakeImageRows::Maker());
  }

  std::string Error() const { return ErrorOf(Open().status()); }
  static std::string ErrorOf(const absl::Status& status) {
    return absl::StrCat(ReasonOf(status), " ", status.message());
  }

  v1::TarInput& target() { return (*spec_.mutable_tar()->mutable_inputs())["target"]; }

  struct Batch {
    std::vector<uint8_t> pixels;
    std::vector<int32_t> labels;
    absl::Status status;
  };
  static Batch ReadTraining(const Dataset& dataset, const std::vector<SampleRef>& samples) {
    Batch batch{std::vector<uint8_t>(12 * samples.size()), std::vector<int32_t>(samples.size())};
    const absl::Span<std::byte> rows[] = {BytesOf(batch.pixels), BytesOf(batch.labels)};
    batch.status = dataset.Read(samples, rows);
    return batch;
  }

  // Returns the labels of all training samples, or the error.
  std::string Labels() const {
    const auto dataset = Open();
    if (!dataset.ok()) return ErrorOf(dataset.status());
    std::vector<SampleRef> samples;
    for (int64_t i = 0; i < (*dataset)->samples(); ++i) samples.push_back({0, i});
    const Batch batch = ReadTraining(**dataset, samples);
    if (!batch.status.ok()) return ErrorOf(batch.status);
    return absl::StrJoin(batch.labels, " ");
  }

  const std::string folder_;
  v1::DataSpec spec_;
};

TEST_F(TarDatasetTest, MembersOfOneBaseNameAreASample) {
  Write("b.tar", Sample("x/0", 'd', "3\n"));
  Write("a.tar", TarMemberBytes("x/", "", '5') + TarMemberBytes("README", "r") +
                     Sample("x/0", 'a', "1") + TarMemberBytes("x/.hidden.jpg", "h") +
                     TarMemberBytes("x/1.cls", " 2 ") + TarMemberBytes("x/1.seg.png", "s") +
                     TarMemberBytes("x/1.JPG", Image('b')) + Sample("y/1", 'c', "0"));
  const auto dataset = Open().value();
  ASSERT_EQ(dataset->samples(), 4);
  EXPECT_EQ(dataset->evaluation_samples(), 0);
  EXPECT_EQ(dataset->row_values(0).size(), 3u);
  EXPECT_TRUE(dataset->row_values(1).empty());
  const Batch batch = ReadTraining(*dataset, {{0, 3}, {2, 0}, {0, 1}, {0, 2}});
  ASSERT_TRUE(batch.status.ok()) << batch.status;
  EXPECT_THAT(batch.labels, ElementsAre(3, 1, 2, 0));
  EXPECT_EQ(batch.pixels[0], 'd');
  EXPECT_EQ(batch.pixels[12], 'a' + 2) << "the epoch";
  EXPECT_EQ(batch.pixels[47], 'c');
}

TEST_F(TarDatasetTest, IsSlowIfItDecodesImages) {
  Write("a.tar", TarMemberBytes("0.jpg", Image('a')) + TarMemberBytes("0.cls", "1") +
                     TarMemberBytes("0.json", R"({"pixels": [1,2,3,4,5,6,7,8,9,10,11,12]})"));
  EXPECT_TRUE(Open().value()->is_slow());
  v1::TarInput& input = (*spec_.mutable_tar()->mutable_inputs())["input"];
  input.set_extension("json");
  input.mutable_json()->set_field("pixels");
  EXPECT_FALSE(Open().value()->is_slow());
}

TEST_F(TarDatasetTest, StoredBytesAreThoseOfTheFilesPerSample) {
  Write("a.tar", Sample("0", 'a', "1") + Sample("1", 'a', "1"));
  Write("b.tar", Sample("2", 'a', "1"));
  // A sample has two members of two blocks, and each file an end of two blocks.
  EXPECT_EQ(Open().value()->mean_stored_bytes(), (3 * 4 + 2 * 2) * 512 / 3);
}

TEST_F(TarDatasetTest, TheFirstOfTheExtensionsCounts) {
  for (const bool png_first : {false, true}) {
    const std::string jpg = TarMemberBytes("0.jpg", Image('j'));
    const std::string png = TarMemberBytes("0.png", Image('p'));
    Write("a.tar", (png_first ? png + jpg : jpg + png) + TarMemberBytes("0.cls", "1"));
    EXPECT_EQ(ReadTraining(*Open().value(), {{0, 0}}).pixels[0], 'j');
  }
}

TEST_F(TarDatasetTest, HoldsOutTheEndOrReadsAnotherPath) {
  std::string samples;
  for (int i = 0; i < 10; ++i) samples += Sample(absl::StrCat(i), 'a', absl::StrCat(i));
  Write("a.tar", samples);
  spec_.mutable_tar()->set_holdout(0.2);
  auto dataset = Open().value();
  EXPECT_EQ(dataset->samples(), 8);
  ASSERT_EQ(dataset->evaluation_samples(), 2);
  std::vector<int32_t> labels(2);
  std::vector<uint8_t> pixels(24);
  absl::Span<std::byte> rows[] = {BytesOf(pixels), BytesOf(labels)};
  ASSERT_TRUE(dataset->ReadEvaluation(0, 2, rows).ok());
  EXPECT_THAT(labels, ElementsAre(8, 9));

  Write("b.tar.eval", Sample("0", 'e', "5"));
  spec_.mutable_tar()->set_eval_path(folder_ + "/b.tar.eval");
  EXPECT_THAT(Error(), HasSubstr("data.tar.holdout: cannot be given together with eval_path"));
  spec_.mutable_tar()->clear_holdout();
  dataset = Open().value();
  ASSERT_EQ(dataset->evaluation_samples(), 1);
  rows[1] = rows[1].first(4);
  rows[0] = {};
  ASSERT_TRUE(dataset->ReadEvaluation(0, 1, rows).ok()) << "an input may be left out";
  EXPECT_EQ(labels[0], 5);
}

TEST_F(TarDatasetTest, AMissingMemberIsNamed) {
  Write("a.tar", Sample("0", 'a', "1") + TarMemberBytes("1.jpg", Image('b')) +
                     TarMemberBytes("1.txt", "t") + Sample("2", 'a', "1"));
  EXPECT_EQ(Error(), absl::StrCat("DATA_INVALID data.tar.inputs.target: ", folder_,
                                  "/a.tar: sample '1' at byte 2560 has no member with the "
                                  "extension cls; it has jpg, txt. Members of a sample must follow "
                                  "each other: pack the files in the order of their names"));
  Write("a.tar", Sample("0", 'a', "1") + TarMemberBytes("0.cls", "2"));
  EXPECT_THAT(Error(), HasSubstr("has two members with the extension cls"));
}

TEST_F(TarDatasetTest, ChecksThePathsAndTheArchives) {
  EXPECT_THAT(Error(), HasSubstr("the folder has no .tar file"));
  Write("a.tar", "");
  EXPECT_THAT(Error(), HasSubstr("DATA_TOO_SMALL"));
  std::string damaged = Sample("0", 'a', "1");
  damaged[1024] = 'x';
  Write("a.tar", damaged);
  EXPECT_THAT(Error(), StartsWith("DATA_DAMAGED data.tar.path: "));
}

TEST_F(TarDatasetTest, ChecksNumbersAgainstTheModel) {
  Write("a.tar", Sample("0", 'a', "1") + Sample("1", 'a', "12"));
  EXPECT_EQ(Labels(),
            absl::StrCat("DATA_INVALID data.tar.inputs.target: ", folder_,
                         "/a.tar: record 1 at byte 3584: numbers up to 12 do not fit the model's "
                         "10 classes: set model.zoo.args.classes to 13, or correct the number"));
  Write("a.tar", Sample("0", 'a', "-1"));
  EXPECT_THAT(Labels(), HasSubstr("-1 is not in the model's range, 0 to 9"));
}

TEST_F(TarDatasetTest, DamageIsFoundAtTheSample) {
  Write("a.tar", Sample("0", 'a', "1"));
  Write("b.tar", Sample("0", 'a', "1") + Sample("1", 'b', "one") + Sample("2", 'c', "99999999999") +
                     TarMemberBytes("3.jpg", "?") + TarMemberBytes("3.cls", "3"));
  const auto dataset = Open().value();
  EXPECT_EQ(ErrorOf(ReadTraining(*dataset, {{0, 2}}).status),
            absl::StrCat("DATA_DAMAGED data.tar.inputs.target: ", folder_,
                         "/b.tar: record 1 at byte 3584: 'one' is no integer"));
  EXPECT_THAT(ErrorOf(ReadTraining(*dataset, {{0, 3}}).status),
              HasSubstr("record 2 at byte 5632: 99999999999 is not in the model's range"));
  EXPECT_THAT(ErrorOf(ReadTraining(*dataset, {{0, 4}}).status),
              AllOf(HasSubstr("DATA_DAMAGED data.tar.inputs.input: "), HasSubstr("is no image")));
}

TEST_F(TarDatasetTest, AThreadKeepsNoMemoryOfALargeMember) {
  Write("a.tar",
        TarMemberBytes("0.jpg", std::string(65 << 20, 'x')) + TarMemberBytes("0.cls", "1"));
  const auto dataset = Open().value();
  const size_t before = mallinfo2().hblkhd;  // bytes of large blocks
  EXPECT_THAT(ErrorOf(ReadTraining(*dataset, {{0, 0}}).status), HasSubstr("is no image"));
  EXPECT_EQ(mallinfo2().hblkhd, before);
}

TEST_F(TarDatasetTest, ReadsNumbersOfJson) {
  target().clear_integer();
  target().set_extension("json");
  target().mutable_json()->set_field("a.label");
  const auto label = [&](const std::string& json) {
    Write("a.tar", TarMemberBytes("0.jpg", Image('a')) + TarMemberBytes("0.json", json));
    return Labels();
  };
  EXPECT_EQ(label(R"({"a": {"label": 7}})"), "7");
  EXPECT_EQ(label(R"({"a": {"label": [8]}})"), "8");
  EXPECT_THAT(label(R"({"a": {"label": 10}})"), HasSubstr("10 is not in the model's range"));
  EXPECT_THAT(label(R"({"a": {"label": 1.5}})"),
              HasSubstr("the field a.label has number 1.5 where the model reads an id"));
  EXPECT_THAT(label(R"({"a": {"label": "\ud83d\ude00"}})"), HasSubstr("has string"));
  EXPECT_THAT(label(R"({"a": {"label": [1, 2]}})"), HasSubstr("has 2 numbers, the model's rows 1"));
  EXPECT_THAT(label(R"({"a": 7})"), HasSubstr("has no field a.label"));
  EXPECT_THAT(label(R"({"a": {"label": {"b": 1}}})"),
              HasSubstr("has object where the model reads an id"));
  const std::string deep =
      absl::StrCat(std::string(1'000'000, '['), "1", std::string(1'000'000, ']'));
  EXPECT_THAT(label(absl::StrCat(R"({"a": {"label": )", deep, "}}")),
              HasSubstr("has array where the model reads an id"));
  EXPECT_THAT(label(R"({"a": )"), AllOf(HasSubstr("DATA_DAMAGED"), HasSubstr("is no JSON text")));
  EXPECT_THAT(label(R"({"a": {"label": 18446744073709551615}})"), HasSubstr("range"));
}

TEST_F(TarDatasetTest, ReadsArrays) {
  target().clear_integer();
  target().set_extension("npy");
  target().mutable_array();
  const auto label = [&](const std::string& npy) {
    Write("a.tar", TarMemberBytes("0.jpg", Image('a')) + TarMemberBytes("0.npy", npy));
    return Labels();
  };
  EXPECT_EQ(label(Npy("|u1", "", "\x07")), "7");
  EXPECT_EQ(label(Npy("<i4", "1,", std::string("\x03\0\0\0", 4))), "3");
  EXPECT_THAT(label(Npy("<i8", "1,", std::string("\x0a\0\0\0\0\0\0\0", 8))),
              HasSubstr("10 is not in"));
  EXPECT_THAT(label(Npy("<f4", "", "0123")),
              HasSubstr("the array is f32, but the model reads ids"));
  EXPECT_THAT(label(Npy("|u1", "2,", "ab")), HasSubstr("the array is [2], the model's rows []"));
  EXPECT_THAT(label("npy"), AllOf(HasSubstr("DATA_DAMAGED"), HasSubstr("not an .npy file")));
}

TEST_F(TarDatasetTest, ChecksTheInputs) {
  Write("a.tar", Sample("0", 'a', "1"));
  (*spec_.mutable_tar()->mutable_inputs())["x"].set_extension("x");
  EXPECT_EQ(Error(),
            "DATA_INVALID data.tar.inputs.x: the model has no such input; it reads input, "
            "target");
  spec_.mutable_tar()->mutable_inputs()->erase("x");
  target().mutable_image();
  EXPECT_THAT(Error(), HasSubstr("an image fills f32[-1, channels, height, width], but the model's "
                                 "target is i32[-1]"));
  spec_.mutable_tar()->mutable_inputs()->erase("target");
  EXPECT_THAT(Error(), HasSubstr("data.tar.inputs.target: required"));
  target().set_extension(" ; ");
  EXPECT_THAT(Error(), HasSubstr("data.tar.inputs.target.extension: required"));
  target().set_extension("cls");
  EXPECT_THAT(Error(), HasSubstr("needs one of image, integer, array and json"));
}

TEST_F(TarDatasetTest, UsesTheIndexOfAnEarlierCall) {
  Write("a.tar", Sample("0", 'a', "1"));
  const DataOptions options{.index_folder = folder_ + "/index"};
  const auto first = Open(options).value();
  EXPECT_THAT(first->fingerprint(), StartsWith("tar:"));
  EXPECT_FALSE(std::filesystem::is_empty(options.index_folder));
  const auto second = Open(options).value();
  EXPECT_EQ(first->fingerprint(), second->fingerprint());
  EXPECT_THAT(ReadTraining(*second, {{0, 0}}).labels, ElementsAre(1));
  Write("a.tar", Sample("0", 'a', "2") + Sample("1", 'b', "3"));
  const auto third = Open(options).value();
  EXPECT_EQ(third->samples(), 2);
  EXPECT_NE(first->fingerprint(), third->fingerprint());
}

TEST_F(TarDatasetTest, RefusesAnIndexBeyondTheMemory) {
  Write("a.tar", Sample("0", 'a', "1") + Sample("1", 'a', "1"));
  EXPECT_TRUE(Open({.held_bytes_max = 56}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Open({.held_bytes_max = 55}).status()));
}

}  // namespace
}  // namespace muster::tar_dataset_test
