#include "cli/data/verification.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/data/format/tar_bytes.h"
#include "lib/data/source/fake_image_rows.h"
#include "lib/data/source/image_graph.h"
#include "lib/data/source/tar_dataset.h"
#include "lib/status/status.h"

namespace muster::cli::verification_test {
namespace {

using testing::HasSubstr;

// Writes an archive of `count` samples, of which every fifth has a damaged image. The last tenth is
// held out.
std::unique_ptr<const Dataset> Open(const std::string& path, int count) {
  std::ofstream file(path, std::ios::binary);
  for (int i = 0; i < count; ++i) {
    file << TarMemberBytes(absl::StrCat(i, ".jpg"), i % 5 == 4 ? "damaged" : "IMGx")
         << TarMemberBytes(absl::StrCat(i, ".cls"), "1");
  }
  file << TarEnd();
  file.close();
  v1::DataSpec spec;
  spec.mutable_tar()->set_path(path);
  spec.mutable_tar()->set_holdout(0.1);
  v1::TarInput& input = (*spec.mutable_tar()->mutable_inputs())["input"];
  input.set_extension("jpg");
  input.mutable_image();
  v1::TarInput& target = (*spec.mutable_tar()->mutable_inputs())["target"];
  target.set_extension("cls");
  target.mutable_integer();
  return OpenTarDataset(spec, ImageGraph(2), {}, FakeImageRows::Maker()).value();
}

TEST(VerificationTest, ReadsEverySampleOnceAndListsTheFirstDamagedOnes) {
  const std::string path = testing::TempDir() + "/verify.tar";
  const auto dataset = Open(path, 100);
  const auto found = Verify(*dataset, ImageGraph(2), {.threads = 3, .faults_max = 2}).value();
  EXPECT_EQ(found.samples, 90);
  EXPECT_EQ(found.evaluation_samples, 10);
  EXPECT_EQ(found.damaged, 20);
  ASSERT_EQ(found.faults.size(), 2u);
  // A member takes a header and a block, 1,024 bytes, and a sample two members.
  EXPECT_EQ(found.faults[0], absl::StrCat("data.tar.inputs.input: ", path, ": record 4 at byte ",
                                          4 * 2048 + 512, ": is no image"));
  EXPECT_EQ(found.faults[1], absl::StrCat("data.tar.inputs.input: ", path, ": record 9 at byte ",
                                          9 * 2048 + 512, ": is no image"));
}

TEST(VerificationTest, AFileThatChangedIsAnError) {
  const std::string path = testing::TempDir() + "/shrunk.tar";
  const auto dataset = Open(path, 3);
  std::filesystem::resize_file(path, 600);
  const auto found = Verify(*dataset, ImageGraph(2), {.threads = 2});
  EXPECT_EQ(ReasonOf(found.status()), "DATA_INVALID");
  EXPECT_THAT(std::string(found.status().message()),
              HasSubstr("shrunk.tar: has 600 bytes and changed after its index was made"));
}

}  // namespace
}  // namespace muster::cli::verification_test
