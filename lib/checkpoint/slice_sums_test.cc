#include "lib/checkpoint/slice_sums.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/checkpoint/disk_file.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"

namespace muster::slice_sums_test {
namespace {

constexpr int64_t kBytes = 100;

class SliceSumsTest : public ::testing::Test {
 protected:
  SliceSumsTest() {
    for (int64_t i = 0; i < kBytes; ++i) bytes_.push_back(static_cast<std::byte>(i));
  }

  // Announces a slice as writers do.
  void Add(int64_t offset, int64_t bytes) {
    sums_.Add(offset, bytes, Crc32c(absl::MakeConstSpan(bytes_).subspan(offset, bytes)));
  }

  absl::StatusOr<std::string> VerifyAndHash() {
    const std::string path = ::testing::TempDir() + "/slice_sums_test";
    remove(path.c_str());
    auto file = DiskFile::CreateToWrite(path);
    EXPECT_TRUE(file.ok() && file->WriteAt(0, bytes_).ok());
    return sums_.VerifyAndHash(*file);
  }

  std::string Hash() const {
    return Sha256Of({reinterpret_cast<const char*>(bytes_.data()), bytes_.size()});
  }

  std::vector<std::byte> bytes_;  // content of the file
  SliceSums sums_;
};

TEST_F(SliceSumsTest, OverlappingSlicesAreHashedOnce) {
  Add(10, 40);
  Add(0, 30);
  Add(0, 20);
  Add(60, 20);

  EXPECT_EQ(VerifyAndHash().value_or("none"), Hash());
}

TEST_F(SliceSumsTest, LastAnnouncementOfTheSameBytesCounts) {
  Add(0, kBytes);
  bytes_[70] = std::byte{0};
  Add(0, kBytes);

  EXPECT_EQ(VerifyAndHash().value_or("none"), Hash());
}

TEST_F(SliceSumsTest, ShorterSliceDoesNotHideALongerOne) {
  Add(0, kBytes);
  Add(0, 50);
  bytes_[70] = std::byte{0};

  const absl::Status status = VerifyAndHash().status();

  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(ReasonOf(status), "DIRECT_MISMATCH");
  EXPECT_TRUE(absl::StrContains(status.message(), "bytes [0, + 100) are not what")) << status;
}

}  // namespace
}  // namespace muster::slice_sums_test
