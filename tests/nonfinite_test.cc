// One sample of the data is NaN. Checks the behavior of a job that reads it.
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/training_cluster.h"

namespace muster::nonfinite_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int kSamples = 800;
constexpr int kSteps = 90;  // of eight samples: most of an epoch
constexpr int kPoisoned = 123;

// Writes an .npy file with the values as f32[samples, 1], little-endian.
void WriteNpy(const std::string& path, const std::vector<float>& values) {
  std::string header =
      absl::StrCat("{'descr': '<f4', 'fortran_order': False, 'shape': (", values.size(), ", 1), }");
  header.append(118 - header.size() - 1, ' ').append("\n");
  std::ofstream file(path, std::ios::binary);
  file.write("\x93NUMPY\x01\x00\x76\x00", 10);
  file << header;
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
}

class NonfiniteTest : public ::testing::Test {
 protected:
  NonfiniteTest() {
    std::vector<float> inputs, targets;
    for (int i = 0; i < kSamples; ++i) {
      inputs.push_back(std::sin(static_cast<float>(i)));
      targets.push_back(i == kPoisoned ? std::nanf("") : 3 * inputs.back() + 1);
    }
    WriteNpy(folder_ + "-input.npy", inputs);
    WriteNpy(folder_ + "-target.npy", targets);
  }

  std::string Job(const std::string& on_non_finite) const {
    return absl::StrCat(
        "name: poisoned\nmodel: {zoo: {name: linear}}\ndata: {npy: {inputs: {input: ", folder_,
        "-input.npy, target: ", folder_,
        "-target.npy}}, batch_size: 8}\ntraining: {steps: ", kSteps,
        ", optimizer: {sgd: {learning_rate: 0.1}}, seed: 3}\n",
        "resources: {workers: {min: 2}, ps: 2}\ncheckpoint: {every_steps: 5, keep_last: 2}\n",
        "on_non_finite: ", on_non_finite, "\n");
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/nonfinite-", getpid());
  TrainingCluster cluster_{{.ps = 2, .workers = 2, .ps_threads = 1}};
};

TEST_F(NonfiniteTest, TheJobFailsAndNamesItsLastGoodCheckpoint) {
  const std::string job = cluster_.Submit(Job("fail"));

  const v1::Job failed = cluster_.AwaitState(job, v1::FAILED, absl::Seconds(60));

  EXPECT_EQ(failed.reason(), "DATA_NOT_FINITE");
  EXPECT_THAT(
      failed.message(),
      AllOf(HasSubstr(absl::StrCat(" is nan: input 'target' has a NaN in row ", kPoisoned, " of ",
                                   folder_, "-target.npy. Correct that row")),
            Not(HasSubstr("learning rate")), HasSubstr(absl::StrCat("resume_from=", job, "@"))));
  // The job's checkpoint may be newer than the one that the message names, because one may have
  // been in progress.
  const std::string folder = absl::StrCat("jobs/", job, "/checkpoints/");
  ASSERT_THAT(failed.checkpoint(), StartsWith(folder));
  int64_t good = 0;
  ASSERT_TRUE(absl::SimpleAtoi(failed.checkpoint().substr(folder.size()), &good));
  for (const auto& [name, values] : cluster_.Parameters(job, good)) {
    for (const float value : values) EXPECT_TRUE(std::isfinite(value)) << name;
  }
}

// The data are valid and the learning rate is far too high. The job fails before its first
// checkpoint, which is due at step 50.
TEST_F(NonfiniteTest, ALearningRateThatIsTooHighIsBlamedAndNoCheckpointIsNamed) {
  const std::string job = cluster_.Submit(
      absl::StrReplaceAll(Job("fail"), {{"learning_rate: 0.1", "learning_rate: 1e6"},
                                        {"every_steps: 5", "every_steps: 50"},
                                        {"-target.npy", "-input.npy"}}));

  const v1::Job failed = cluster_.AwaitState(job, v1::FAILED, absl::Seconds(60));

  EXPECT_EQ(failed.reason(), "LOSS_NOT_FINITE");
  EXPECT_THAT(failed.message(), AllOf(HasSubstr("Try a lower learning rate"),
                                      HasSubstr("It has no checkpoint: submitted again, it starts "
                                                "from its beginning"),
                                      Not(HasSubstr("resume_from"))));
}

TEST_F(NonfiniteTest, TheJobRollsBackLeavesTheBatchOutAndLearnsTheLine) {
  const std::string job = cluster_.Submit(Job("rollback"));

  const v1::Job done = cluster_.AwaitState(job, v1::SUCCEEDED, absl::Seconds(90));

  EXPECT_EQ(done.reason(), "COMPLETED");
  EXPECT_EQ(done.recovery().rollbacks(), 1);
  EXPECT_EQ(done.recovery().count(), 0);
  EXPECT_THAT(done.recovery().left_out_batches(), SizeIs(1));
  for (const StepMetrics& step : cluster_.Metrics(job)) {
    EXPECT_TRUE(std::isfinite(step.loss)) << step.step;
  }
  EXPECT_LT(done.progress().loss(), 1e-2);
  EXPECT_THAT(cluster_.Metrics(job), SizeIs(kSteps));

  // A job that continues from this checkpoint omits the same batch.
  const v1::Job next = cluster_.AwaitState(
      cluster_.Submit(absl::StrReplaceAll(
          Job("fail"), {{absl::StrCat("steps: ", kSteps), absl::StrCat("steps: ", kSteps + 5)},
                        {"every_steps: 5", absl::StrCat("every_steps: 5, resume_from: ", job)}})),
      v1::SUCCEEDED, absl::Seconds(60));
  ASSERT_THAT(next.recovery().left_out_batches(), SizeIs(1)) << next.DebugString();
  EXPECT_EQ(next.recovery().left_out_batches(0), done.recovery().left_out_batches(0));
  ASSERT_THAT(next.warnings(), SizeIs(1));
  EXPECT_THAT(next.warnings(0), AllOf(HasSubstr("resume_from: without batches"), HasSubstr(job)));
}

}  // namespace
}  // namespace muster::nonfinite_test
