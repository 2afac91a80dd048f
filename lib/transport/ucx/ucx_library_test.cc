#include "lib/transport/ucx/ucx_library.h"

#include <ucp/api/ucp.h>

#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace muster::ucx_library_test {
namespace {

bool UcxIsInThisProcess() {
  std::ifstream maps("/proc/self/maps");
  const std::string text(std::istreambuf_iterator<char>(maps), {});
  return absl::StrContains(text, "/libucp.") || absl::StrContains(text, "/libucs.");
}

TEST(UcxLibraryTest, UcxIsLoadedOnlyWhenItIsRequested) {
  EXPECT_FALSE(UcxIsInThisProcess());
  ASSERT_TRUE(LoadUcx().ok()) << LoadUcx();
  EXPECT_TRUE(UcxIsInThisProcess());
  EXPECT_STREQ(ucs_status_string(UCS_ERR_NO_DEVICE), "No such device");
}

TEST(UcxLibraryTest, TheErrorOfAMissingLibraryNamesWhatToInstall) {
  const absl::Status missing = LoadUcxFrom("libno_ucx.so.0");
  EXPECT_EQ(missing.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(missing.message(), "libno_ucx.so.0")) << missing;
  EXPECT_TRUE(absl::StrContains(missing.message(), "libucx0")) << missing;

  const absl::Status another = LoadUcxFrom("libc.so.6");
  EXPECT_EQ(another.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(another.message(), "it has no ucp_am_data_release")) << another;
}

}  // namespace
}  // namespace muster::ucx_library_test
