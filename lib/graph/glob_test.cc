#include "lib/graph/glob.h"

#include <string>

#include "gtest/gtest.h"

namespace muster::glob_test {
namespace {

TEST(GlobTest, AStarIsAnyCharactersAndAQuestionMarkOne) {
  EXPECT_TRUE(MatchesGlob("*", ""));
  EXPECT_TRUE(MatchesGlob("", ""));
  EXPECT_TRUE(MatchesGlob("head.weight", "head.weight"));
  EXPECT_TRUE(MatchesGlob("*.bias", "blocks.0.norm.bias"));
  EXPECT_TRUE(MatchesGlob("blocks.?.norm*", "blocks.0.norm.bias"));
  EXPECT_TRUE(MatchesGlob("*a*b*c", "xaybzbc"));
  EXPECT_TRUE(MatchesGlob("**", "x"));
  EXPECT_FALSE(MatchesGlob("head", "head.weight")) << "the whole name";
  EXPECT_FALSE(MatchesGlob("weight", "head.weight"));
  EXPECT_FALSE(MatchesGlob("blocks.?.norm", "blocks.10.norm"));
  EXPECT_FALSE(MatchesGlob("?", ""));
  EXPECT_FALSE(MatchesGlob("*a*b", "ba"));
}

TEST(GlobTest, ManyStarsDoNotExplode) {
  std::string pattern;
  for (int i = 0; i < 60; ++i) pattern += "*a";
  EXPECT_FALSE(MatchesGlob(pattern + "b", std::string(2000, 'a')));
}

}  // namespace
}  // namespace muster::glob_test
