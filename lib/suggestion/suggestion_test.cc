#include "lib/suggestion/suggestion.h"

#include "gtest/gtest.h"

namespace muster::suggestion_test {
namespace {

TEST(SuggestionTest, NamesTheNearestKnownWord) {
  const std::vector<std::string> known = {"steps", "epochs", "optimizer", "schedule"};

  EXPECT_EQ(NearestName("step", known), "steps");
  EXPECT_EQ(NearestName("Epochs", known), "epochs");
  EXPECT_EQ(NearestName("optmizier", known), "optimizer");
  EXPECT_EQ(NearestName("shcedule", known), "schedule");
}

TEST(SuggestionTest, StaysSilentWhenNothingIsNear) {
  EXPECT_EQ(NearestName("momentum", {"steps", "epochs"}), "");
  EXPECT_EQ(NearestName("", {"steps"}), "");
  EXPECT_EQ(NearestName(std::string(100000, 'x'), {"steps"}), "");
}

}  // namespace
}  // namespace muster::suggestion_test
