#include "services/coordinator/job/recovery/steps_to_train.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "lib/plan/endless_data.h"
#include "lib/status/status.h"

namespace muster::steps_to_train_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two workers see 80 samples and 20 for evaluation. The job wants 40 steps of 8 samples.
class StepsToTrainTest : public ::testing::Test {
 protected:
  StepsToTrainTest() {
    for (const char* name : {"w-0", "w-1"}) plan_.add_workers()->set_member(name);
    plan_.mutable_spec()->mutable_data()->set_batch_size(8);
    plan_.mutable_spec()->mutable_training()->set_steps(40);
    members_.Enlist(plan_, absl::UnixEpoch());
    for (const char* name : {"w-0", "w-1"}) See(name, 80, 20);
  }

  static v1::DatasetFacts Facts(int64_t samples, int64_t evaluation_samples) {
    v1::DatasetFacts facts;
    facts.set_samples(samples);
    facts.set_evaluation_samples(evaluation_samples);
    return facts;
  }
  void See(const std::string& worker, int64_t samples, int64_t evaluation_samples) {
    See(worker, Facts(samples, evaluation_samples));
  }
  void See(const std::string& worker, const v1::DatasetFacts& facts) {
    v1::JobReport report;
    report.set_state(v1::MEMBER_PREPARED);
    *report.mutable_dataset() = facts;
    members_.Take(worker, &report, absl::UnixEpoch());
  }
  absl::StatusOr<int64_t> Steps(int64_t committed_step = -1) const {
    return StepsToTrain(plan_, members_, committed_step);
  }

  v1::JobPlan plan_;
  JobMembers members_;
};

TEST_F(StepsToTrainTest, StepsFollowFromTheSpecAndTheData) {
  EXPECT_EQ(*Steps(), 40);
  plan_.mutable_spec()->mutable_training()->set_epochs(3);
  plan_.mutable_spec()->mutable_training()->clear_steps();
  EXPECT_EQ(*Steps(), 30);
}

TEST_F(StepsToTrainTest, AStreamWithoutEndHasStepsAndNoEpochs) {
  for (const char* name : {"w-0", "w-1"}) See(name, kEndlessSamples, 0);
  EXPECT_EQ(*Steps(), 40);
  plan_.mutable_spec()->mutable_training()->set_epochs(3);
  EXPECT_EQ(ReasonOf(Steps().status()), "DATA_ENDLESS");
  EXPECT_THAT(std::string(Steps().status().message()),
              ::testing::HasSubstr("set training.steps instead"));
}

TEST_F(StepsToTrainTest, AllWorkersMustSeeTheSameData) {
  See("w-1", 80, 21);
  EXPECT_EQ(ReasonOf(Steps().status()), "DATASET_MISMATCH");
  EXPECT_EQ(Steps().status().message(),
            "workers see different data: w-0 has 80 + 20 samples, w-1 has 80 + 21");
  See("w-1", 79, 20);
  EXPECT_EQ(ReasonOf(Steps().status()), "DATASET_MISMATCH");
}

TEST_F(StepsToTrainTest, AllWorkersMustSeeTheSameFiles) {
  v1::DatasetFacts facts = Facts(80, 20);
  facts.set_fingerprint("12ab12ab12ab12ab:pixels-1");
  See("w-0", facts);
  EXPECT_TRUE(Steps().ok()) << "w-1 is of an older version and reports no fingerprint";
  See("w-1", facts);
  EXPECT_TRUE(Steps().ok());
  facts.set_fingerprint("12ab12ab12ab12ab:pixels-2");
  See("w-1", facts);
  EXPECT_EQ(ReasonOf(Steps().status()), "DATASET_MISMATCH");
  EXPECT_EQ(Steps().status().message(),
            "workers see different data: w-1 has other files or labels than w-0: fingerprint "
            "12ab12ab12ab12ab:pixels-2 against 12ab12ab12ab12ab:pixels-1; give all workers "
            "the same files and the same version of Muster");
}

TEST_F(StepsToTrainTest, AnOldWorkerDoesNotHideThatTheOthersSeeOtherFiles) {
  plan_.add_workers()->set_member("w-2");
  members_.Enlist(plan_, absl::UnixEpoch());
  v1::DatasetFacts facts = Facts(80, 20);
  See("w-0", facts);
  facts.set_fingerprint("12ab");
  See("w-1", facts);
  facts.set_fingerprint("34cd");
  See("w-2", facts);
  EXPECT_EQ(ReasonOf(Steps().status()), "DATASET_MISMATCH");
}

TEST_F(StepsToTrainTest, AJobContinuesWithTheDataThatItHasTrainedOn) {
  const auto check = [&](const std::string& fingerprint, bool is_own = true) {
    return CheckSameData(plan_, members_, {.fingerprint = fingerprint, .is_own = is_own});
  };
  plan_.set_job("net-7");
  plan_.set_restore("jobs/net-5/checkpoints/20");
  EXPECT_TRUE(check("12ab").ok()) << "the workers report no fingerprint";
  v1::DatasetFacts facts = Facts(80, 20);
  facts.set_fingerprint("34cd");
  See("w-1", facts);
  EXPECT_EQ(FingerprintOfData(plan_, members_), "34cd");
  EXPECT_TRUE(check("34cd").ok());
  EXPECT_TRUE(check("").ok()) << "an older checkpoint";
  EXPECT_EQ(ReasonOf(check("12ab")), "DATA_CHANGED");
  EXPECT_EQ(check("12ab").message(),
            "the files or labels of the data have changed since the job trained on them: "
            "fingerprint 34cd against 12ab; to train on the new data, submit the job again with "
            "checkpoint.resume_from: net-7");
  EXPECT_EQ(ReasonOf(check("12ab", /*is_own=*/false)), "OTHER_DATA");
  EXPECT_EQ(check("12ab", /*is_own=*/false).message(),
            "the files or labels of the data are not those of jobs/net-5/checkpoints/20, which has "
            "the same data section: fingerprint 34cd against 12ab");
}

TEST_F(StepsToTrainTest, AllWorkersMustDivideTheDataAlike) {
  v1::DatasetFacts facts = Facts(80, 20);
  facts.set_block_samples(16);
  See("w-0", facts);
  facts.set_block_samples(32);
  See("w-1", facts);
  EXPECT_EQ(Steps().status().message(),
            "workers see different data: a block has 16 samples on w-0, 32 on w-1; set "
            "data.shuffle.block.samples");
  for (const int64_t samples : {50, 30}) facts.add_part_samples(samples);
  See("w-0", facts);
  facts.set_part_samples(0, 51);
  See("w-1", facts);
  EXPECT_EQ(Steps().status().message(),
            "workers see different data: the parts of the mixture have 50, 30 samples on w-0, 51, "
            "30 on w-1");
}

TEST_F(StepsToTrainTest, FindsNewcomersWithOtherData) {
  const auto go_on_with = [this](const std::vector<std::string>& workers) {
    plan_.clear_workers();
    for (const std::string& name : workers) plan_.add_workers()->set_member(name);
    members_.Began();
    members_.Enlist(plan_, absl::UnixEpoch());
    for (const std::string& name : workers) See(name, 80, 20);
  };
  See("w-1", 79, 20);
  EXPECT_THAT(NewcomersWithOtherData(members_), IsEmpty()) << "no worker has trained yet";
  go_on_with({"w-0", "w-2", "w-1"});
  EXPECT_THAT(NewcomersWithOtherData(members_), IsEmpty());
  See("w-2", 79, 20);
  EXPECT_THAT(NewcomersWithOtherData(members_), ElementsAre("w-2"));
  See("w-1", 79, 20);
  EXPECT_THAT(NewcomersWithOtherData(members_), IsEmpty()) << "the earlier workers disagree";

  members_.SetLost("w-0");
  go_on_with({"w-0", "w-1"});
  See("w-0", 79, 20);
  EXPECT_THAT(NewcomersWithOtherData(members_), ElementsAre("w-0")) << "w-0 is a new process";
}

TEST_F(StepsToTrainTest, ComparesAnotherWorkersDataWithTheKnownData) {
  v1::DatasetFacts facts;
  facts.set_samples(80);
  facts.set_evaluation_samples(20);
  EXPECT_EQ(DifferenceOfData(members_, "w-2", facts), "");
  facts.set_evaluation_samples(21);
  EXPECT_EQ(DifferenceOfData(members_, "w-2", facts),
            "workers see different data: w-0 has 80 + 20 samples, w-2 has 80 + 21");
  members_.Enlist(plan_, absl::UnixEpoch());
  EXPECT_EQ(DifferenceOfData(members_, "w-2", facts), "") << "no worker has reported its data";
  See("w-1", 80, 20);
  EXPECT_EQ(DifferenceOfData(members_, "w-2", facts),
            "workers see different data: w-1 has 80 + 20 samples, w-2 has 80 + 21");
}

TEST_F(StepsToTrainTest, ABatchMustFitTheData) {
  plan_.mutable_spec()->mutable_data()->set_batch_size(80);
  EXPECT_TRUE(Steps().ok());
  plan_.mutable_spec()->mutable_data()->set_batch_size(81);
  EXPECT_EQ(ReasonOf(Steps().status()), "DATA_TOO_SMALL");
  EXPECT_EQ(Steps().status().message(), "data.batch_size: 81 samples do not fit the data set's 80");
}

TEST_F(StepsToTrainTest, JobThatBeginsAtOrAfterItsEndHasNothingToTrain) {
  plan_.set_first_step(39);
  EXPECT_TRUE(Steps().ok());
  plan_.set_first_step(40);
  EXPECT_EQ(ReasonOf(Steps().status()), "NOTHING_TO_TRAIN") << "another job's checkpoint";
  EXPECT_EQ(Steps().status().message(),
            "the checkpoint is of step 40, the job ends at step 40: raise training.steps or "
            "training.epochs");
  plan_.set_first_step(41);
  EXPECT_EQ(ReasonOf(Steps(/*committed_step=*/41).status()), "NOTHING_TO_TRAIN");
}

TEST_F(StepsToTrainTest, JobThatHasMadeAllItsStepsMayBeginInOrderToEnd) {
  plan_.set_first_step(40);
  EXPECT_EQ(*Steps(/*committed_step=*/40), 40);
  plan_.set_carries(3);
  EXPECT_EQ(*Steps(), 40) << "its shards are not in a checkpoint yet";
}

}  // namespace
}  // namespace muster::steps_to_train_test
