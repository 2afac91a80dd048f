#include "cli/text/progress_display.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::cli::progress_display_test {
namespace {

class ProgressDisplayTest : public ::testing::Test {
 protected:
  // Returns the lines that an update prints. `step` is the step of its newest evaluation.
  std::string Update(int64_t step, v1::JobState state = v1::RUNNING) {
    v1::Job job;
    job.set_name("jobs/net-1");
    job.set_state(state);
    job.mutable_progress()->set_evaluation_loss(0.5);
    job.mutable_progress()->set_evaluation_step(step);
    testing::internal::CaptureStderr();
    display_.Update(job, absl::UnixEpoch());
    return testing::internal::GetCapturedStderr();
  }

  std::vector<Evaluation> recorded_;
  ProgressDisplay display_{Terminal{}, [this](int64_t first_step) {
                             EXPECT_GE(first_step, 0);
                             return recorded_;
                           }};
};

TEST_F(ProgressDisplayTest, PrintsEveryEvaluationOnceEvenBetweenUpdates) {
  recorded_ = {{.step = 0, .loss = 2.5}, {.step = 50, .loss = 2}, {.step = 100, .loss = 1.5}};
  EXPECT_EQ(Update(100),
            "step 0: evaluation loss 2.5\n"
            "step 50: evaluation loss 2\n"
            "step 100: evaluation loss 1.5\n"
            "net-1 RUNNING  0/1 workers 0/1 ps\n");
  EXPECT_EQ(Update(100), "");
  recorded_.push_back({.step = 150, .loss = 5.6e-5, .accuracy = 0.97});
  EXPECT_EQ(Update(150), "step 150: evaluation loss 5.6e-05, accuracy 97.00 %\n");
}

TEST_F(ProgressDisplayTest, ALaterUpdatePrintsAnEvaluationThatWasNotRecordedYet) {
  EXPECT_EQ(Update(50), "net-1 RUNNING  0/1 workers 0/1 ps\n");
  recorded_ = {{.step = 50, .loss = 2}};
  EXPECT_EQ(Update(50, v1::SUCCEEDED), "step 50: evaluation loss 2\nnet-1 SUCCEEDED\n");
}

}  // namespace
}  // namespace muster::cli::progress_display_test
