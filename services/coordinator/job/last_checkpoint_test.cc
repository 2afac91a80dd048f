#include "services/coordinator/job/last_checkpoint.h"

#include <gtest/gtest.h>

namespace muster::last_checkpoint_test {
namespace {

TEST(LastCheckpointTest, AJobGoesOnFromItAndAnotherMayToo) {
  v1::Job record;
  record.set_name("jobs/net-1");
  record.set_checkpoint("jobs/net-1/checkpoints/50");
  EXPECT_EQ(CommittedStep(record), 50);
  EXPECT_EQ(WhereItGoesOn(record), "net-1@50");
  EXPECT_EQ(AdviceToResume(record),
            ". To go on, submit it again with --set checkpoint.resume_from=net-1@50");
}

TEST(LastCheckpointTest, AJobWithoutOneGoesBackToItsBeginning) {
  v1::Job record;
  record.set_name("jobs/net-1");
  EXPECT_EQ(CommittedStep(record), -1);
  EXPECT_EQ(WhereItGoesOn(record), "where it began");
  EXPECT_EQ(AdviceToResume(record), "");
}

}  // namespace
}  // namespace muster::last_checkpoint_test
