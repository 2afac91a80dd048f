#include "cli/commands/data_commands.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/data/format/tar_bytes.h"
#include "lib/data/source/fake_image_rows.h"

namespace muster::cli::data_commands_test {
namespace {

using testing::HasSubstr;

class DataCommandsTest : public testing::Test {
 protected:
  DataCommandsTest() : folder_(absl::StrCat(testing::TempDir(), "/data_commands")) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    Write("job.yaml", JobOf(folder_ + "/a.tar"));
  }

  // Returns a job file that reads archives.
  static std::string JobOf(const std::string& path) {
    return absl::StrCat(R"(name: shards
model:
  zoo: {name: lenet}
data:
  batch_size: 2
  tar:
    path: ")",
                        path, R"("
    inputs:
      input: {extension: jpg, image: {}}
      target: {extension: cls, integer: {}}
)");
  }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(absl::StrCat(folder_, "/", name), std::ios::binary) << text;
  }

  // Writes an archive of two samples.
  void WriteSamples(const std::string& second_image) const {
    Write("a.tar", TarMemberBytes("0.jpg", "IMGa") + TarMemberBytes("0.cls", "1") +
                       TarMemberBytes("1.jpg", second_image) + TarMemberBytes("1.cls", "2") +
                       TarEnd());
  }

  // Returns the output of a command, or its error.
  template <typename Function>
  static std::string OutputOf(const Function& command) {
    testing::internal::CaptureStdout();
    const absl::Status status = command();
    const std::string text = testing::internal::GetCapturedStdout();
    return status.ok() ? text : std::string(status.message());
  }

  const std::string folder_;
  const std::string job_ = folder_ + "/job.yaml";
  Session session_;
};

TEST_F(DataCommandsTest, IndexSavesTheIndexAndPrintsItsSize) {
  WriteSamples("IMGb");
  const std::string text = OutputOf(
      [&] { return PrintIndex(job_, folder_ + "/index", FakeImageRows::Maker(), session_); });
  EXPECT_THAT(text, HasSubstr("samples       2 to train on, 0 held out\nfiles         1, "));
  EXPECT_THAT(text, HasSubstr("fingerprint   tar:"));
  EXPECT_THAT(text, HasSubstr("index         in "));
  EXPECT_THAT(text, testing::ContainsRegex("time          [0-9.]+ s\n"));
  EXPECT_FALSE(std::filesystem::is_empty(folder_ + "/index"));
  EXPECT_THAT(OutputOf([&] { return PrintIndex(job_, folder_ + "/index", nullptr, session_); }),
              HasSubstr("this program cannot decode images"));
}

TEST_F(DataCommandsTest, IndexNeedsNoFolderAndCountsArchivesAlone) {
  WriteSamples("IMGb");
  Write("b.tar.txt", "notes");
  session_.output_name = "jsonpath={.files} {.seconds}";
  Write("job.yaml", JobOf(folder_));
  const std::string text =
      OutputOf([&] { return PrintIndex(job_, "", FakeImageRows::Maker(), session_); });
  EXPECT_THAT(text, testing::MatchesRegex("1 [0-9][-0-9.e]*\n"));
  session_.output_name = "table";
  EXPECT_THAT(OutputOf([&] { return PrintIndex(job_, "", FakeImageRows::Maker(), session_); }),
              HasSubstr("index         not kept; --index-folder FOLDER keeps it\n"));
}

TEST_F(DataCommandsTest, IndexCountsThePartsOfAMixture) {
  Write("a.csv", "x,y\n1,2\n3,4\n");
  Write("b.csv", "x,y\n1,2\n");
  const auto part = [&](const std::string& name) {
    return absl::StrCat("      - weight: 1\n        data: {csv: {path: \"", folder_, "/", name,
                        "\", inputs: {input: {columns: [x], number: {}}, target: {columns: [y], "
                        "number: {}}}}}\n");
  };
  Write("job.yaml",
        absl::StrCat("name: mixed\nmodel: {zoo: {name: linear}}\ndata:\n  batch_size: 1\n"
                     "  mixture:\n    parts:\n",
                     part("a.csv"), part("b.csv")));
  const std::string index = folder_ + "/index";
  EXPECT_THAT(OutputOf([&] { return PrintIndex(job_, index, nullptr, session_); }),
              HasSubstr("samples       3 to train on, 0 held out\nfiles         2, "));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(index), {}), 2);
}

TEST_F(DataCommandsTest, IndexNamesAFolderThatCannotBeMade) {
  WriteSamples("IMGb");
  EXPECT_THAT(OutputOf([&] {
                return PrintIndex(job_, folder_ + "/a.tar/x", FakeImageRows::Maker(), session_);
              }),
              testing::MatchesRegex("--index-folder .*/a.tar/x: cannot be made: Not a directory"));
}

TEST_F(DataCommandsTest, VerifyExitsWithOneIfASampleIsDamaged) {
  const auto verify = [&] {
    return OutputOf(
        [&] { return PrintVerification(job_, {}, "", FakeImageRows::Maker(), session_); });
  };
  WriteSamples("IMGb");
  EXPECT_EQ(verify(), "2 samples to train on and 0 held-out ones: 0 damaged\n");
  EXPECT_EQ(session_.exit_code, 0);
  WriteSamples("damaged");
  EXPECT_THAT(verify(),
              testing::MatchesRegex(".*a.tar: record 1 at byte 2560: is no image\n"
                                    "2 samples to train on and 0 held-out ones: 1 damaged\n"));
  EXPECT_EQ(session_.exit_code, 1);
}

TEST_F(DataCommandsTest, InspectPrintsASectionOfAJobFile) {
  WriteSamples("IMGb");
  EXPECT_THAT(OutputOf([&] { return PrintInspection(folder_ + "/a.tar", {}, session_); }),
              AllOf(HasSubstr("2 samples\n"), HasSubstr("\ndata:\n  batch_size: 2\n  tar:\n")));
}

}  // namespace
}  // namespace muster::cli::data_commands_test
