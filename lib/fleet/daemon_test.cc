#include "lib/fleet/daemon.h"

#include <csignal>

#include "gtest/gtest.h"
#include "lib/job/resource_name.h"

namespace muster {
namespace {

TEST(DaemonTest, DefaultNamesAreValidAndSayTheRole) {
  const std::string name = DefaultMemberName(v1::PS);
  EXPECT_TRUE(IsValidName(name)) << name;
  EXPECT_EQ(name.substr(0, 3), "ps-");
}

TEST(DaemonTest, EveryIntroductionIsANewIncarnation) {
  const v1::Hello first = Introduce(v1::WORKER, "w"), second = Introduce(v1::WORKER, "w");
  EXPECT_EQ(first.member(), "w");
  EXPECT_NE(first.incarnation(), second.incarnation());
}

TEST(DaemonTest, StopSignalIsTakenByWaiting) {
  StopSignal stop;
  EXPECT_EQ(stop.Await(absl::ZeroDuration()), 0);
  raise(SIGTERM);
  EXPECT_EQ(stop.Await(), SIGTERM);
}

}  // namespace
}  // namespace muster
