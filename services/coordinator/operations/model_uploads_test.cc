#include "services/coordinator/operations/model_uploads.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/time/clock.h"
#include "lib/checkpoint/disk_file.h"
#include "lib/job/path_rules.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster::model_uploads_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ModelUploadsTest : public ::testing::Test {
 protected:
  static std::string NewFolder() {
    std::string folder = ::testing::TempDir() + "/uploads-XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    return folder;
  }
  std::string Store(const std::string& content) {
    const auto upload = uploads_.Begin();
    EXPECT_TRUE(upload.ok()) << upload.status();
    EXPECT_TRUE((*upload)->Write(content.substr(0, 3)).ok());
    EXPECT_TRUE((*upload)->Write(content.substr(3)).ok());
    const auto path = (*upload)->Commit([] { return false; });
    EXPECT_TRUE(path.ok()) << path.status();
    return path.value_or("");
  }
  int Files() const {
    return static_cast<int>(std::distance(fs::directory_iterator(home_ + "/uploads"), {}));
  }

  const std::string home_ = NewFolder();
  const ModelUploads uploads_{home_ + "/uploads"};
};

TEST_F(ModelUploadsTest, AFileHasTheNameOfItsContent) {
  const std::string path = Store("tensors");
  EXPECT_EQ(path, "uploads/" + Sha256Of("tensors") + ".safetensors");
  EXPECT_TRUE(IsUploadedModel(path));
  std::ifstream file(home_ + "/" + path);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}), "tensors");
  EXPECT_EQ(Store("tensors"), path);
  EXPECT_NE(Store("others"), path);
  EXPECT_EQ(Files(), 2);
}

TEST_F(ModelUploadsTest, NothingIsLeftOfAnUploadThatFails) {
  {
    const auto upload = uploads_.Begin();
    ASSERT_TRUE((*upload)->Write("tensors").ok());
    const absl::Status large = (*upload)->Write(std::string(limits::kSliceBytesMax + 1, 'x'));
    EXPECT_EQ(ReasonOf(large), "INVALID_REQUEST");
    EXPECT_THAT(std::string(large.message()), HasSubstr("at most 2097152 bytes (is 2097153)"));
    EXPECT_TRUE(absl::IsCancelled((*upload)->Commit([] { return true; }).status()));
    EXPECT_EQ(Files(), 1);
  }
  EXPECT_EQ(Files(), 0);
  const auto empty = uploads_.Begin();
  EXPECT_THAT(std::string((*empty)->Commit([] { return false; }).status().message()),
              HasSubstr("the file is empty"));
}

TEST_F(ModelUploadsTest, OldFilesThatNoJobNamesAreRemoved) {
  const std::string named = Store("named"), other = Store("other");
  const auto is_named = [&](const std::string& path) { return path == named; };
  uploads_.RemoveOld(absl::Now() + absl::Hours(23), is_named);
  EXPECT_EQ(Files(), 2);
  uploads_.RemoveOld(absl::Now() + absl::Hours(25), is_named);
  EXPECT_EQ(Files(), 1);
  EXPECT_TRUE(fs::exists(home_ + "/" + named));
  std::ofstream(home_ + "/uploads/0123.part") << "after a crash";
  uploads_.RemoveUnfinished();
  EXPECT_EQ(Files(), 1);
}

}  // namespace
}  // namespace muster::model_uploads_test
