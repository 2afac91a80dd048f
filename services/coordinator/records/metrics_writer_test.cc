#include "services/coordinator/records/metrics_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "lib/concurrency/mailbox.h"
#include "lib/status/status.h"

namespace muster::metrics_writer_test {
namespace {

using ::testing::HasSubstr;

class MetricsWriterTest : public ::testing::Test {
 protected:
  MetricsWriterTest() {
    folder_ = ::testing::TempDir() + "/writer-XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }

  std::string Path(uint64_t job) const {
    return folder_ + "/" + std::to_string(job) + "/metrics.jsonl";
  }
  // Creates the folder of the job's log. Without it every write fails.
  void MakeFolder(uint64_t job) {
    std::filesystem::create_directories(std::filesystem::path(Path(job)).parent_path());
  }
  std::string Contents(uint64_t job) {
    std::ifstream file(Path(job));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  int Lines(uint64_t job) {
    const std::string contents = Contents(job);
    return static_cast<int>(std::count(contents.begin(), contents.end(), '\n'));
  }
  void AppendStep(uint64_t job, int64_t step) {
    writer_->Append(job, Path(job), {{.step = step, .loss = 1}}, {}, {.steps = step + 1});
  }

  struct Told {
    uint64_t job = 0;
    int64_t steps_before = 0;
  };
  Told AwaitTold() {
    Told told;
    EXPECT_TRUE(told_.Take(told, absl::Seconds(30)));
    return told;
  }

  std::string folder_;
  Mailbox<Told> told_{1024};
  std::unique_ptr<MetricsWriter> writer_ = std::make_unique<MetricsWriter>(
      MetricsWriter::Options{.durable =
                                 [this](uint64_t job, const RecordsBefore& durable) {
                                   // The steps are in the log before they are reported as durable.
                                   EXPECT_EQ(Lines(job), durable.steps);
                                   told_.TryPost({job, durable.steps});
                                 },
                             .retry = absl::Milliseconds(5)});
};

TEST_F(MetricsWriterTest, ReportsDurableRecords) {
  MakeFolder(1);
  MakeFolder(2);
  AppendStep(1, 0);
  EXPECT_EQ(AwaitTold().steps_before, 1);
  AppendStep(2, 0);
  EXPECT_EQ(AwaitTold().job, 2);
  AppendStep(1, 1);
  EXPECT_EQ(AwaitTold().steps_before, 2);
}

TEST_F(MetricsWriterTest, AFailedWriteIsRepeatedAndDoesNotDelayOtherJobs) {
  MakeFolder(2);
  AppendStep(1, 0);
  AppendStep(1, 1);
  AppendStep(2, 0);
  EXPECT_EQ(AwaitTold().job, 2);
  EXPECT_TRUE(writer_->Trouble(2).ok());
  AppendStep(2, 1);
  EXPECT_EQ(AwaitTold().job, 2);  // the second attempt: job 1 has been tried by now
  EXPECT_EQ(ReasonOf(writer_->Trouble(1)), "METRICS_LOG_FAILED");
  EXPECT_THAT(std::string(writer_->Trouble(1).message()), HasSubstr(Path(1)));

  MakeFolder(1);

  AppendStep(1, 2);
  Told told = AwaitTold();
  EXPECT_EQ(told.job, 1);
  if (told.steps_before < 3) told = AwaitTold();
  EXPECT_EQ(told.steps_before, 3);
  EXPECT_EQ(Lines(1), 3);
  EXPECT_LT(Contents(1).find("\"step\":0"), Contents(1).find("\"step\":1"));
  EXPECT_TRUE(writer_->Trouble(1).ok());
}

TEST_F(MetricsWriterTest, ClosingWritesWaitingRecords) {
  MakeFolder(1);
  for (int step = 0; step < 100; ++step) AppendStep(1, step);
  writer_->Close(1);
  writer_.reset();
  EXPECT_EQ(Lines(1), 100);
}

TEST_F(MetricsWriterTest, DiscardingDropsWaitingRecords) {
  AppendStep(1, 0);
  writer_->Discard(1);
  EXPECT_TRUE(writer_->Trouble(1).ok());
  MakeFolder(1);
  writer_.reset();
  EXPECT_FALSE(std::filesystem::exists(Path(1)));
}

}  // namespace
}  // namespace muster::metrics_writer_test
