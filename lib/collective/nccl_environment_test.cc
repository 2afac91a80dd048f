#include "lib/collective/nccl_environment.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace muster::nccl_environment_test {
namespace {

TEST(NcclEnvironmentTest, LeavesOutTheAlgorithmThatDoesNotRepeat) {
  unsetenv("NCCL_ALGO");
  SetNcclDefaults();
  EXPECT_STREQ(getenv("NCCL_ALGO"), "^NVLS");
}

TEST(NcclEnvironmentTest, KeepsTheUsersValue) {
  for (const char* value : {"Ring", ""}) {
    setenv("NCCL_ALGO", value, /*overwrite=*/1);
    SetNcclDefaults();
    EXPECT_STREQ(getenv("NCCL_ALGO"), value);
  }
}

}  // namespace
}  // namespace muster::nccl_environment_test
