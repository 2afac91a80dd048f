#include "cli/text/tfevents.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::cli::tfevents_test {
namespace {

using ::testing::HasSubstr;

const absl::Time kStart = absl::FromUnixSeconds(1'800'000'000);

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

template <typename Number>
Number At(const std::string& bytes, size_t offset) {
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof(number));
  return number;
}

std::string WrittenFile(const std::string& folder) {
  auto file = EventFile::Create(folder, "line-1", kStart);
  EXPECT_TRUE(file.ok()) << file.status();
  for (int step = 0; step < 300; ++step) {
    (*file)->AddScalar("loss", step, 5.0 / (step + 1), kStart + absl::Seconds(step));
  }
  (*file)->AddScalar("loss", 300, std::numeric_limits<double>::quiet_NaN(), kStart);
  EXPECT_TRUE((*file)->Close().ok());
  return (*file)->path();
}

// The expected bytes come from the formats, the CRCs from Python's crc32c.
TEST(TfeventsTest, TheFirstRecordIsTheVersion) {
  const std::string path = WrittenFile(::testing::TempDir() + "/bytes");
  EXPECT_THAT(path, HasSubstr("/events.out.tfevents.1800000000.line-1"));
  const std::string bytes = ReadAll(path);
  ASSERT_EQ(At<uint64_t>(bytes, 0), 24)
      << "a double and a text of 13 bytes, each with its field header";
  EXPECT_EQ(At<uint32_t>(bytes, 8), 0x224b7fa3U);
  EXPECT_EQ(bytes.substr(12, 1), "\x09");
  EXPECT_EQ(At<double>(bytes, 13), 1.8e9);
  EXPECT_EQ(bytes.substr(21, 15),
            "\x1a\x0d"
            "brain.Event:2");
}

TEST(TfeventsTest, RecordsFollowEachOtherWithoutGaps) {
  const std::string bytes = ReadAll(WrittenFile(::testing::TempDir() + "/records"));
  int records = 0;
  size_t offset = 0;
  while (offset < bytes.size()) {
    offset += 8 + 4 + At<uint64_t>(bytes, offset) + 4;
    ++records;
  }
  EXPECT_EQ(offset, bytes.size());
  EXPECT_EQ(records, 302);
}

TEST(TfeventsTest, TensorBoardReadsItBack) {
  if (std::system("python3 -c 'import tensorboard' 2>/dev/null") != 0) {
    GTEST_SKIP() << "python3 with the package tensorboard is not here";
  }
  const std::string folder = ::testing::TempDir() + "/tensorboard";
  WrittenFile(folder);
  const std::string script = folder + "/read.py";
  std::ofstream(script) << R"(
import math, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})
events.Reload()
loss = events.Scalars('loss')
assert [e.step for e in loss] == list(range(301)), len(loss)
assert abs(loss[9].value - 0.5) < 1e-6 and math.isnan(loss[300].value)
assert loss[7].wall_time == 1800000007
)";
  EXPECT_EQ(std::system(absl::StrCat("python3 ", script, " ", folder).c_str()), 0);
}

TEST(TfeventsTest, AnErrorNamesTheFolderThatCannotBeMade) {
  const auto file = EventFile::Create("/proc/nobody/here", "line-1", kStart);
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("/proc/nobody/here"));
}

}  // namespace
}  // namespace muster::cli::tfevents_test
