#include "services/coordinator/checkpoints/checkpoint_files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster::checkpoint_files_test {
namespace {

class CheckpointFilesTest : public ::testing::Test {
 protected:
  CheckpointFilesTest() {
    std::string folder = ::testing::TempDir() + "/files-XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    checkpoint_.set_name("jobs/a/checkpoints/1");
    checkpoint_.set_directory(folder);
    Write("values.safetensors", std::string(limits::kReadChunkBytesMax + 5, 'v'));
    checkpoint_.add_files()->set_name("values.safetensors");
    Write("manifest.json", "{}");
  }
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(checkpoint_.directory() + "/" + name) << content;
  }

  v1::Checkpoint checkpoint_;
};

TEST_F(CheckpointFilesTest, ADownloadSucceedsThoughTheCheckpointIsPruned) {
  auto files = CheckpointFiles::Open(checkpoint_, {});
  ASSERT_TRUE(files.ok()) << files.status();
  std::map<std::string, int64_t> read;

  for (int piece = 0;; ++piece) {
    auto next = files->Next();
    ASSERT_TRUE(next.ok()) << next.status();
    if (!next->has_value()) break;
    EXPECT_EQ((*next)->offset(), read[(*next)->file()]);
    read[(*next)->file()] += static_cast<int64_t>((*next)->data().size());
    if (piece == 0) std::filesystem::remove_all(checkpoint_.directory());
  }

  EXPECT_EQ(read["values.safetensors"], limits::kReadChunkBytesMax + 5);
  EXPECT_EQ(read["manifest.json"], 2);
}

TEST_F(CheckpointFilesTest, ADeletedCheckpointIsNotFound) {
  std::filesystem::remove_all(checkpoint_.directory());
  const auto files = CheckpointFiles::Open(checkpoint_, {});
  EXPECT_EQ(ReasonOf(files.status()), "CHECKPOINT_NOT_FOUND");
}

TEST_F(CheckpointFilesTest, ADownloadContinuesAtAnOffset) {
  v1::ReadCheckpointRequest request;
  request.set_file("manifest.json");
  request.set_offset(1);
  auto files = CheckpointFiles::Open(checkpoint_, request);
  ASSERT_TRUE(files.ok());
  EXPECT_EQ((**files->Next()).data(), "}");

  request.set_offset(3);
  EXPECT_EQ(ReasonOf(CheckpointFiles::Open(checkpoint_, request).status()), "INVALID_REQUEST");
  request.clear_file();
  EXPECT_EQ(ReasonOf(CheckpointFiles::Open(checkpoint_, request).status()), "INVALID_REQUEST");
}

}  // namespace
}  // namespace muster::checkpoint_files_test
