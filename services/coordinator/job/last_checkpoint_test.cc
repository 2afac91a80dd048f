#include "services/coordinator/job/last_checkpoint.h"

#include <gtest/gtest.h>

namespace muster::last_checkpoint_test {
namespace {

TEST(LastCheckpointTest, AdvisesToResumeFromTheLastCheckpoint) {
  v1::Job record;
  record.set_name("jobs/net-1");
  record.set_checkpoint("jobs/net-1/checkpoints/50");
  EXPECT_EQ(CommittedStep(record), 50);
  EXPECT_EQ(WhereItGoesOn(record), "net-1@50");
  EXPECT_EQ(AdviceToResume(record),
            ". To go on from its last checkpoint, submit it again with --set "
            "checkpoint.resume_from=net-1@50");
}

TEST(LastCheckpointTest, AJobWithoutACheckpointReturnsToItsBeginning) {
  v1::Job record;
  record.set_name("jobs/net-1");
  EXPECT_EQ(CommittedStep(record), -1);
  EXPECT_EQ(WhereItGoesOn(record), "its beginning (it has no checkpoint)");
  EXPECT_EQ(AdviceToResume(record),
            ". It has no checkpoint: submitted again, it starts from its beginning");
}

}  // namespace
}  // namespace muster::last_checkpoint_test
