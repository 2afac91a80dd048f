#include "lib/version/build.h"

#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/version/version.h"

namespace muster::build_test {
namespace {

using ::testing::AnyOf;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

TEST(BuildTest, TheVersionIsThatOfTheFile) {
  std::ifstream file("VERSION");
  std::string version;
  ASSERT_TRUE(std::getline(file, version));

  EXPECT_EQ(Version(), version);
  EXPECT_EQ(ThisBuild().version, version);
  EXPECT_THAT(version, MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

TEST(BuildTest, TestsAreNotStamped) { EXPECT_EQ(ThisBuild().commit, "unknown"); }

TEST(BuildTest, OnlyABuildBetweenReleasesHasBuildMetadata) {
  const std::string number = Version();
  const Build release = BuildOf("71f0bcc9d2a1");
  EXPECT_EQ(release.version, number);
  EXPECT_EQ(release.commit, "71f0bcc9d2a1");

  const Build later = BuildOf("71f0bcc9d2a1-dirty +14.g71f0bcc9d2a1.dirty");
  EXPECT_EQ(later.version, number + "+14.g71f0bcc9d2a1.dirty");
  EXPECT_EQ(later.commit, "71f0bcc9d2a1-dirty");

  for (const char* stamp : {"unknown", "redacted", ""}) {
    EXPECT_EQ(BuildOf(stamp).version, number) << stamp;
    EXPECT_EQ(BuildOf(stamp).commit, "unknown") << stamp;
  }
}

TEST(BuildTest, SaysHowItWasBuilt) {
  const Build build = ThisBuild();
  EXPECT_THAT(build.kind, AnyOf(StartsWith("opt"), StartsWith("dbg"), StartsWith("fastbuild")));
  EXPECT_THAT(build.compiler, MatchesRegex("(g\\+\\+|clang) [0-9]+\\.[0-9.]+.*"));
}

TEST(BuildTest, TheTextHasOneLinePerFact) {
  EXPECT_EQ(ToText({.version = "1.2.3",
                    .commit = "71f0bcc9d2a1",
                    .kind = "opt",
                    .cuda = true,
                    .compiler = "g++ 12.2.0"}),
            "muster 1.2.3\ncommit 71f0bcc9d2a1\nbuild opt, CUDA, g++ 12.2.0\n");
}

}  // namespace
}  // namespace muster::build_test
