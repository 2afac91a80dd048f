#include "lib/text/byte_size.h"

#include "gtest/gtest.h"

namespace muster::byte_size_test {
namespace {

TEST(ByteSizeTest, HasTheLargestUnitThatFits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(int64_t{5} << 30), "5.0 GiB");
  EXPECT_EQ(FormatBytes(int64_t{3} << 50), "3.0 PiB");
}

}  // namespace
}  // namespace muster::byte_size_test
