#include "lib/engine/cpu/cpu_device.h"

#include <cctype>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::cpu_device_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(CpuDeviceTest, TheExactKindHasThreadsProcessorCachesAndTheLibrary) {
  const CpuDevice device("cpu:0", /*threads=*/2);
  const std::string kind = device.exact_kind();
  EXPECT_THAT(kind, StartsWith(device.description() + ", "));
  for (const char* word : {", family ", ", L1 ", ", L2 ", ", L3 ", ", oneDNN ", " isa 0x"}) {
    EXPECT_THAT(kind, HasSubstr(word));
  }
  EXPECT_LT(kind.size(), 250) << kind;
  for (const char c : kind) EXPECT_TRUE(std::isprint(static_cast<unsigned char>(c))) << kind;
  EXPECT_EQ(CpuDevice("cpu:1", 2).exact_kind(), kind) << "its name does not matter";
  EXPECT_NE(CpuDevice("cpu:0", 3).exact_kind(), kind);
}

}  // namespace
}  // namespace muster::cpu_device_test
