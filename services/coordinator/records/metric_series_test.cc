#include "services/coordinator/records/metric_series.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "lib/status/status.h"
#include "services/coordinator/records/metrics_log.h"
#include "services/coordinator/records/step_aggregator.h"

namespace muster::metric_series_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string FreshFile() {
  std::string folder = ::testing::TempDir() + "/series-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder + "/metrics.jsonl";
}

double TimeOf(int64_t step) { return 1000 + static_cast<double>(step); }
double LossOf(int64_t step) { return 3.0 / (1 + step * 1e-3); }

void Append(const std::string& path, int64_t from, int64_t to) {
  std::ofstream file(path, std::ios::app);
  for (int64_t step = from; step < to; ++step) {
    file << "{\"step\":" << step << ",\"loss\":" << LossOf(step)
         << ",\"gradient_norm\":0.5,\"learning_rate\":0.001,\"samples_per_second\":100,\"time\":"
         << TimeOf(step) << "}\n";
  }
}

Series ReadOne(MetricSeries& series, const std::string& path, SeriesRequest request) {
  const auto answer = series.Read(path, request);
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer.ok() ? answer->series.at(0) : Series();
}

TEST(MetricSeriesTest, ReturnsAShortLogExactly) {
  const std::string path = FreshFile();
  auto log = MetricsLog::Open(path);
  const absl::Time time = absl::FromUnixMillis(1'764'130'836'125);
  ASSERT_TRUE((*log)
                  ->Append({{.step = 0, .loss = 0.1, .gradient_norm = 1.0 / 3, .time = time},
                            {.step = 1, .loss = 1e-5, .gradient_norm = NAN}},
                           {{.step = 2, .loss = 0.7, .accuracy = 0.25, .time = time}})
                  .ok());
  MetricSeries series;

  const auto answer = series.Read(path, {});

  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->first_step, 0);
  EXPECT_EQ(answer->last_step, 1);
  ASSERT_EQ(answer->series.size(), MetricSeries::Names().size());
  EXPECT_EQ(answer->series[0].name, "loss");
  ASSERT_EQ(answer->series[0].points.size(), 2);
  EXPECT_EQ(answer->series[0].points[0].values.last, 0.1);
  EXPECT_EQ(answer->series[0].points[1].values.min, 1e-5);
  EXPECT_EQ(answer->series[1].points[0].values.max, 1.0 / 3);
  EXPECT_TRUE(std::isnan(answer->series[1].points[1].values.last));
  EXPECT_FALSE(answer->series[1].points[1].values.any_finite());
  EXPECT_THAT(answer->series[4].points, IsEmpty());  // this job has no loss scale
  EXPECT_EQ(answer->series[5].points.at(0).last_step, 2);
  EXPECT_EQ(answer->series[6].points.at(0).values.last, 0.25);
  EXPECT_EQ(answer->series[0].points[0].last_time, 1'764'130'836.125);
  EXPECT_TRUE(std::isnan(answer->series[0].points[1].last_time)) << "the log has no time";
  EXPECT_EQ(answer->series[6].points[0].last_time, 1'764'130'836.125);
}

TEST(MetricSeriesTest, StepsWithoutALossHaveNoPoint) {
  const std::string path = FreshFile();
  auto log = MetricsLog::Open(path);
  const MetricMeans metrics = {{"evaluation_loss", 9}, {"loss", 9}, {"}", 9}};
  ASSERT_TRUE((*log)
                  ->Append({{.step = 0, .loss = 4, .gradient_norm = 1},
                            {.step = 1, .gradient_norm = 2, .metrics = metrics},
                            {.step = 2, .loss = NAN, .gradient_norm = 3}},
                           {{.step = 2, .accuracy = 0.5, .metrics = metrics}})
                  .ok());
  MetricSeries series;
  const Series loss = ReadOne(series, path, {.names = {"loss"}});
  ASSERT_EQ(loss.points.size(), 2);
  EXPECT_EQ(loss.points[0].values.last, 4);
  EXPECT_EQ(loss.points[1].first_step, 2);
  EXPECT_TRUE(std::isnan(loss.points[1].values.last)) << "a loss that is not finite";
  EXPECT_EQ(ReadOne(series, path, {.names = {"gradient_norm"}}).points.size(), 3);
  EXPECT_THAT(ReadOne(series, path, {.names = {"evaluation_loss"}}).points, IsEmpty());
  EXPECT_EQ(ReadOne(series, path, {.names = {"evaluation_accuracy"}}).points.size(), 1);
  const Series one = ReadOne(series, path, {.names = {"loss"}, .to = 1, .points = 1});
  ASSERT_EQ(one.points.size(), 1);
  EXPECT_EQ(one.points[0].values.last, 4) << "of step 0: step 1 has none";
}

TEST(MetricSeriesTest, FewPointsOfALongLogKeepSpikesAndTheEnd) {
  constexpr int64_t kSteps = 100'000;
  constexpr int64_t kSpike = 77'777;
  const std::string path = FreshFile();
  Append(path, 0, kSpike);
  std::ofstream(path, std::ios::app) << "{\"step\":" << kSpike << ",\"loss\":1000}\n"
                                     << "{\"step\":" << kSpike << ",\"evaluation_loss\":7}\n";
  Append(path, kSpike + 1, kSteps);
  MetricSeries series;

  const Series loss = ReadOne(series, path, {.names = {"loss"}, .points = 100});

  ASSERT_LE(loss.points.size(), 100);
  ASSERT_GE(loss.points.size(), 50);
  EXPECT_EQ(loss.points.front().first_step, 0);
  EXPECT_EQ(loss.points.back().last_step, kSteps - 1);
  EXPECT_NEAR(loss.points.back().values.last, LossOf(kSteps - 1), 1e-5);
  for (size_t i = 0; i < loss.points.size(); ++i) {
    const SeriesPoint& point = loss.points[i];
    ASSERT_EQ(point.first_step, i == 0 ? 0 : loss.points[i - 1].last_step + 1);
    const bool has_spike = point.first_step <= kSpike && kSpike <= point.last_step;
    EXPECT_EQ(point.values.max == 1000, has_spike) << point.first_step;
    EXPECT_NEAR(point.values.min, LossOf(point.last_step), 1e-3);
    EXPECT_EQ(point.first_time, TimeOf(point.first_step));
    EXPECT_EQ(point.last_time, TimeOf(point.last_step));
  }
  EXPECT_EQ(ReadOne(series, path, {.names = {"evaluation_loss"}}).points.at(0).values.last, 7);
}

TEST(MetricSeriesTest, ReadsASmallRangeFromTheFile) {
  const std::string path = FreshFile();
  Append(path, 0, 100'000);
  MetricSeries series;

  const Series loss =
      ReadOne(series, path, {.names = {"loss"}, .from = 50'001, .to = 50'500, .points = 1000});

  ASSERT_EQ(loss.points.size(), 500);
  EXPECT_EQ(loss.points.front().first_step, 50'001);
  EXPECT_EQ(loss.points.front().last_step, 50'001);
  EXPECT_EQ(loss.points.back().first_step, 50'500);
  EXPECT_NEAR(loss.points.back().values.last, LossOf(50'500), 1e-6);
  EXPECT_EQ(loss.points.front().last_time, TimeOf(50'001));
  EXPECT_THAT(ReadOne(series, path, {.from = 100'000, .to = 200'000}).points, IsEmpty());
}

TEST(MetricSeriesTest, ReadsAnAppendedLineOnceItIsFinished) {
  const std::string path = FreshFile();
  Append(path, 0, 10);
  MetricSeries series;
  EXPECT_EQ(series.Read(path, {})->last_step, 9);

  std::ofstream(path, std::ios::app) << "{\"step\":10,\"loss\":";
  EXPECT_EQ(series.Read(path, {})->last_step, 9);
  std::ofstream(path, std::ios::app) << "42}\n";

  const Series loss = ReadOne(series, path, {.names = {"loss"}});
  ASSERT_EQ(loss.points.size(), 11);
  EXPECT_EQ(loss.points.back().values.last, 42);
}

TEST(MetricSeriesTest, ReadsATruncatedLogAgain) {
  const std::string path = FreshFile();
  Append(path, 0, 10);
  MetricSeries series;
  EXPECT_EQ(series.Read(path, {})->last_step, 9);

  std::filesystem::resize_file(path, 0);
  Append(path, 0, 3);

  EXPECT_EQ(series.Read(path, {})->last_step, 2);
}

TEST(MetricSeriesTest, SkipsInvalidLines) {
  const std::string path = FreshFile();
  std::ofstream(path) << "garbage\n{\"step\":-1,\"loss\":1}\n{\"loss\":1}\n[]\n{}\n\n"
                      << "{\"step\":5,\"loss\":x}\n{\"step\":7,\"loss\":0.5,\"skipped\":true}\n"
                      << "{\"step\":6,\"loss\":9}\n"
                      << std::string(3 << 20, 'x') << "\n";
  Append(path, 8, 9);
  MetricSeries series;

  const Series loss = ReadOne(series, path, {.names = {"loss"}});

  ASSERT_EQ(loss.points.size(), 2);
  EXPECT_EQ(loss.points[0].first_step, 7);
  EXPECT_EQ(loss.points[0].values.last, 0.5);
  EXPECT_EQ(loss.points[1].first_step, 8);
}

TEST(MetricSeriesTest, AJobThatHasNotBegunHasNoPoints) {
  MetricSeries series;
  const auto answer = series.Read(FreshFile(), {});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->last_step, -1);
  EXPECT_EQ(answer->first_step, -1);
  EXPECT_THAT(answer->series[0].points, IsEmpty());
  EXPECT_EQ(series.memory_bytes(), 0);
}

TEST(MetricSeriesTest, RejectsFaultyRequestsWithAnExplanation) {
  MetricSeries series;
  const std::string path = FreshFile();
  const absl::Status twice = series.Read(path, {.names = {"loss", "loss"}}).status();
  EXPECT_EQ(ReasonOf(twice), "INVALID_REQUEST") << "as often as its caller likes, at 400 KB each";
  const absl::Status typo = series.Read(path, {.names = {"los"}}).status();
  EXPECT_EQ(ReasonOf(typo), "INVALID_REQUEST");
  EXPECT_THAT(std::string(typo.message()), HasSubstr("did you mean loss?"));
  EXPECT_THAT(std::string(series.Read(path, {.names = {"\x80nothing"}}).status().message()),
              HasSubstr("there are loss, gradient_norm"));
  EXPECT_EQ(ReasonOf(series.Read(path, {.from = 2, .to = 1}).status()), "INVALID_REQUEST");
  EXPECT_EQ(ReasonOf(series.Read(path, {.from = -1}).status()), "INVALID_REQUEST");
  EXPECT_EQ(ReasonOf(series.Read(path, {.points = 0}).status()), "INVALID_REQUEST");
  EXPECT_EQ(ReasonOf(series.Read(path, {.points = 10'001}).status()), "INVALID_REQUEST");
  EXPECT_EQ(ReasonOf(series.Read(::testing::TempDir(), {}).status()), "METRICS_LOG_FAILED");
}

TEST(MetricSeriesTest, DropsOldPyramidsToBoundMemory) {
  constexpr int64_t kBytes = 200'000;
  MetricSeries series(kBytes);
  std::vector<std::string> paths;
  for (int job = 0; job < 20; ++job) {
    paths.push_back(FreshFile());
    Append(paths.back(), 0, 100 + job);
  }
  for (int round = 0; round < 2; ++round) {
    for (int job = 0; job < 20; ++job) {
      EXPECT_EQ(series.Read(paths[job], {})->last_step, 99 + job);
      EXPECT_LE(series.memory_bytes(), kBytes);
    }
  }
  EXPECT_GT(series.memory_bytes(), kBytes / 2);
}

TEST(MetricSeriesTest, ManyThreadsMayReadAGrowingLog) {
  const std::string path = FreshFile();
  MetricSeries series(/*memory_bytes_max=*/1);  // keeps only the last pyramid
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      int64_t last = -1;
      while (last < 999) {
        const auto answer = series.Read(path, {.names = {"loss"}});
        ASSERT_TRUE(answer.ok()) << answer.status();
        ASSERT_GE(answer->last_step, last);
        ASSERT_EQ(std::ssize(answer->series[0].points), answer->last_step + 1);
        last = answer->last_step;
      }
    });
  }
  for (int step = 0; step < 1000; step += 10) Append(path, step, step + 10);
  for (std::thread& reader : readers) reader.join();
}

TEST(MetricPyramidTest, MergingBucketsNeitherLosesNorRepeatsRows) {
  MetricPyramid pyramid(1);
  constexpr int64_t kRows = 5 * MetricPyramid::kBucketsMax + 3;
  for (int64_t i = 0; i < kRows; ++i) pyramid.Add(2 * i, i, {static_cast<double>(i)});

  ASSERT_LE(std::ssize(pyramid.buckets()), MetricPyramid::kBucketsMax);
  int64_t row = 0;
  for (int64_t i = 0; i < std::ssize(pyramid.buckets()); ++i) {
    const MetricPyramid::Bucket& bucket = pyramid.buckets()[i];
    ASSERT_EQ(bucket.first_step, 2 * row);
    ASSERT_EQ(bucket.offset, row);
    ASSERT_EQ(pyramid.Range(i, 0).min, row);
    row += bucket.rows;
    ASSERT_EQ(pyramid.Range(i, 0).last, row - 1);
    ASSERT_EQ(bucket.last_step, 2 * (row - 1));
  }
  EXPECT_EQ(row, kRows);
  EXPECT_EQ(pyramid.rows_per_bucket(), 8);
}

}  // namespace
}  // namespace muster::metric_series_test
