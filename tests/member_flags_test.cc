// Options with which ps and worker refuse to start, and how they exit then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace muster::member_flags_test {
namespace {

using ::testing::HasSubstr;

struct Ended {
  int code = -1;
  std::string output;
};

// Runs the program until it exits. `environment`: "NAME=VALUE" or empty.
Ended RunMain(const std::string& environment, const std::string& program,
              const std::string& flags) {
  FILE* const pipe = popen(
      absl::StrCat(environment, " services/", program, "/main ", flags, " 2>&1").c_str(), "r");
  Ended ended;
  char buffer[4096];
  while (const size_t bytes = fread(buffer, 1, sizeof(buffer), pipe)) {
    ended.output.append(buffer, bytes);
  }
  ended.code = WEXITSTATUS(pclose(pipe));
  return ended;
}

class MemberFlagsTest : public ::testing::TestWithParam<const char*> {
 protected:
  static Ended Run(const std::string& flags) { return RunMain("", GetParam(), flags); }
};

INSTANTIATE_TEST_SUITE_P(, MemberFlagsTest, ::testing::Values("ps", "worker"),
                         [](const auto& program) { return std::string(program.param); });

TEST_P(MemberFlagsTest, AnAddressThatIsNoneEndsItForGood) {
  for (const char* flags : {"--insecure --metrics=9401", "--metrics=127.0.0.1:99999",
                            "--metrics=127.0.0.1:0 --health=127.0.0.1:99999"}) {
    const Ended ended = Run(flags);

    EXPECT_EQ(ended.code, 78) << flags << ": " << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("host:port")) << flags;
  }
}

TEST_P(MemberFlagsTest, AnAddressThatIsNotHereMayBeTriedAgain) {
  const Ended ended = Run("--insecure --metrics=192.0.2.1:9401");  // an unused address (RFC 5737)

  EXPECT_EQ(ended.code, 200) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("cannot serve metrics: cannot listen on 192.0.2.1:9401"));
}

TEST_P(MemberFlagsTest, ALogFormatThatIsNoneEndsItForGood) {
  const Ended ended = Run("--log_format=xml");

  EXPECT_EQ(ended.code, 64) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("'xml' specified for flag 'log_format'; it must be text or"));
}

// The error comes before it connects to a coordinator; none is running.
TEST(WorkerFlagsTest, GpusThatAreNotThereEndItForGood) {
  const Ended ended = RunMain("CUDA_VISIBLE_DEVICES=-1", "worker", "--devices=cuda:0");

  EXPECT_EQ(ended.code, 78) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("--devices: 'cuda:0' asks for a GPU, but "));
  EXPECT_THAT(ended.output, HasSubstr("or compute on the CPU with cpu"));
}

}  // namespace
}  // namespace muster::member_flags_test
