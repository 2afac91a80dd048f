#include "lib/fleet/log_ring.h"

#include <glog/logging.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::log_ring_test {
namespace {

using ::testing::HasSubstr;

TEST(LogRingTest, KeepsLinesLoggedWhileItExists) {
  LOG(INFO) << "before";
  const LogRing ring;
  LOG(WARNING) << "the disk is slow";

  const LogRing::Part part = ring.Read(std::nullopt, 1 << 20);

  EXPECT_EQ(part.offset, 0);
  EXPECT_EQ(part.text.front(), 'W') << "as in the log itself: severity, time, thread, place";
  EXPECT_THAT(part.text, HasSubstr("log_ring_test.cc"));
  EXPECT_THAT(part.text, HasSubstr("] the disk is slow\n"));
  EXPECT_EQ(part.next_offset, static_cast<int64_t>(part.text.size()));
}

TEST(LogRingTest, TheLastPartIsWholeLines) {
  LogRing ring;
  for (const char* line : {"one\n", "two\n", "three\n"}) ring.Add(line);
  EXPECT_EQ(ring.Read(std::nullopt, 6).text, "three\n");
  EXPECT_EQ(ring.Read(std::nullopt, 8).text, "three\n") << "not the end of 'two'";
  EXPECT_EQ(ring.Read(std::nullopt, 10).text, "two\nthree\n");
  EXPECT_EQ(ring.Read(std::nullopt, 10).offset, 4);
}

TEST(LogRingTest, FollowingTheLogNeitherSkipsNorRepeatsLines) {
  LogRing ring;
  std::string written, read;
  int64_t offset = 0;
  for (int i = 0; i < 100; ++i) {
    const std::string line = absl::StrCat("line ", i, "\n");
    written += line;
    ring.Add(line);
    const LogRing::Part part = ring.Read(offset, 16);  // sometimes less than what is unread
    EXPECT_EQ(part.offset, offset);
    EXPECT_EQ(part.text.back(), '\n');
    read += part.text;
    offset = part.next_offset;
  }
  while (offset < static_cast<int64_t>(written.size())) {
    const LogRing::Part part = ring.Read(offset, 16);
    ASSERT_FALSE(part.text.empty());
    read += part.text;
    offset = part.next_offset;
  }
  EXPECT_EQ(read, written);
  EXPECT_EQ(ring.Read(offset, 16).text, "");
  EXPECT_EQ(ring.Read(offset + 99, 16).next_offset, offset) << "an offset of an earlier process";
}

TEST(LogRingTest, ForgetsTheOldest) {
  LogRing ring(/*bytes_max=*/64);
  std::string written;
  for (int i = 100; i < 200; ++i) {
    const std::string line = absl::StrCat("line ", i, "\n");
    written += line;
    ring.Add(line);
  }
  const LogRing::Part part = ring.Read(0, 1 << 20);
  EXPECT_GT(part.offset, 0) << "the returned offset shows that older lines are gone";
  EXPECT_LE(part.text.size(), 64);
  EXPECT_EQ(written.substr(part.offset, part.text.size()), part.text);
  const LogRing::Part last = ring.Read(std::nullopt, 1 << 20);
  EXPECT_EQ(last.next_offset, static_cast<int64_t>(written.size()));
  EXPECT_THAT(last.text, ::testing::EndsWith("line 199\n"));
  EXPECT_LE(last.text.size(), 64);
  EXPECT_EQ(last.text.substr(0, 5), "line ");
}

}  // namespace
}  // namespace muster::log_ring_test
