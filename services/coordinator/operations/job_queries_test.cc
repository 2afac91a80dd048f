#include "services/coordinator/operations/job_queries.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "services/coordinator/testing/registry_fixture.h"

namespace muster::job_queries_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class JobQueriesTest : public RegistryFixture {
 protected:
  void Cancel(uint64_t number) {
    {
      JobRegistry::Transaction transaction(registry_.get());
      JobRegistry::Entry& entry = *transaction.FindNumber(number);
      ASSERT_TRUE(entry.job.Cancel(now_).ok());
      transaction.Commit(entry);
    }
    registry_->Settle();
  }
  uint64_t AddLabelled(const std::string& team) {
    v1::JobSpec policy;
    (*policy.mutable_labels())["team"] = team;
    return AddJob(nullptr, policy);
  }
  std::shared_ptr<JobQueries::AllJobs> Watch(const v1::WatchJobsRequest& request) {
    auto watch = queries_.WatchJobs(
        request, std::make_shared<StreamWaker>(std::function<void()>([this] { ++wakes_; })));
    EXPECT_TRUE(watch.ok()) << watch.status();
    return *watch;
  }
  static std::vector<uint64_t> Numbers(const v1::WatchJobsResponse& response) {
    std::vector<uint64_t> numbers;
    for (const v1::Job& job : response.jobs()) numbers.push_back(job.number());
    return numbers;
  }
  // Returns "NUMBER:REASON" of all events, read page by page.
  std::vector<std::string> AllEvents(const std::string& parent, int page_size) {
    std::vector<std::string> events;
    v1::ListEventsRequest request;
    request.set_parent(parent);
    request.set_page_size(page_size);
    do {
      const auto page = queries_.ListEvents(request);
      EXPECT_TRUE(page.ok()) << page.status();
      if (!page.ok()) break;
      EXPECT_LE(page->events_size(), page_size);
      for (const v1::JobEvent& event : page->events()) {
        events.push_back(absl::StrCat(event.job(), ":", event.revision()));
      }
      request.set_page_token(page->next_page_token());
    } while (!request.page_token().empty());
    return events;
  }

  MetricSeries series_;
  JobQueries queries_{registry_.get(), &watches_, &series_};
  int wakes_ = 0;
};

TEST_F(JobQueriesTest, AWatchOfAllJobsListsThemAndMissesNoChange) {
  const uint64_t first = AddJob();
  const uint64_t second = AddJob();
  const auto watch = Watch({});
  Cancel(first);  // between the watch and its first message

  auto response = queries_.Next(*watch);
  ASSERT_TRUE(response.has_value());
  EXPECT_THAT(Numbers(*response), ElementsAre(second, first));
  EXPECT_TRUE(response->complete());
  EXPECT_EQ(response->jobs(1).state(), v1::CANCELLED);
  EXPECT_TRUE(response->jobs(1).spec().model().source_case() == 0) << "basic, unless asked";
  EXPECT_EQ(wakes_, 1);
  response = queries_.Next(*watch);  // the change after the watch began
  ASSERT_TRUE(response.has_value());
  EXPECT_THAT(Numbers(*response), ElementsAre(first));
  EXPECT_FALSE(response->complete());
  EXPECT_FALSE(queries_.Next(*watch).has_value());

  Cancel(second);
  EXPECT_EQ(wakes_, 2);
  response = queries_.Next(*watch);
  ASSERT_TRUE(response.has_value());
  EXPECT_THAT(Numbers(*response), ElementsAre(second));
  EXPECT_FALSE(queries_.Next(*watch).has_value());
}

TEST_F(JobQueriesTest, RemovesAJobThatNoLongerMatchesOrIsDeletedOnce) {
  const uint64_t vision = AddLabelled("vision");
  const uint64_t audio = AddLabelled("audio");
  v1::WatchJobsRequest request;
  request.set_selector("team=vision");
  request.add_states(v1::QUEUED);
  const auto watch = Watch(request);
  EXPECT_THAT(Numbers(*queries_.Next(*watch)), ElementsAre(vision));

  Cancel(audio);
  auto response = queries_.Next(*watch);
  ASSERT_TRUE(response.has_value());
  EXPECT_THAT(response->removed(), IsEmpty()) << "it was never told";
  Cancel(vision);
  response = queries_.Next(*watch);
  ASSERT_TRUE(response.has_value());
  EXPECT_THAT(response->removed(), ElementsAre("jobs/line-1"));
  EXPECT_THAT(response->jobs(), IsEmpty());
  watches_.Wake({vision});
  EXPECT_THAT(queries_.Next(*watch)->removed(), IsEmpty()) << "it is reported once";
  request.set_selector("team in vision");
  EXPECT_EQ(ReasonOf(queries_.WatchJobs(request, nullptr).status()), "INVALID_REQUEST");
}

TEST_F(JobQueriesTest, EventsComeInPagesOfAnySizeEachOnlyOnce) {
  const uint64_t first = AddJob();
  const uint64_t second = AddJob();
  Cancel(first);
  Cancel(second);
  const std::vector<std::string> all = {"line-2:1", "line-2:2", "line-1:1", "line-1:2"};
  for (int size = 1; size <= 5; ++size) EXPECT_EQ(AllEvents("", size), all) << size;
  for (int size = 1; size <= 3; ++size) {
    EXPECT_THAT(AllEvents("jobs/line-1", size), ElementsAre("line-1:1", "line-1:2")) << size;
  }
  v1::ListEventsRequest request;
  request.set_parent("line-1");
  request.set_page_token("1");
  const auto later = queries_.ListEvents(request);
  ASSERT_TRUE(later.ok());
  ASSERT_EQ(later->events_size(), 1) << "those after a revision";
  EXPECT_EQ(later->events(0).reason(), "CANCELLED");
  for (const char* token : {"x", "1:2:3", "7:"}) {
    request.set_parent("");
    request.set_page_token(token);
    EXPECT_EQ(ReasonOf(queries_.ListEvents(request).status()), "INVALID_REQUEST") << token;
  }
  request.set_parent("nobody-1");
  request.set_page_token("");
  EXPECT_EQ(ReasonOf(queries_.ListEvents(request).status()), "JOB_NOT_FOUND");
}

TEST_F(JobQueriesTest, CurvesOfAnyLengthKeepTheirSpikes) {
  AddJob();
  ASSERT_TRUE(registry_->folder().MakeJob("line-1").ok());
  constexpr int kSteps = 50'000;
  {
    std::ofstream log(registry_->folder().metrics_log("line-1"));
    for (int step = 0; step < kSteps; ++step) {
      const double loss = step == 31'234 ? 99 : 5.0 - step * 1e-5;
      log << absl::StrCat("{\"step\":", step, ",\"loss\":", loss,
                          ",\"gradient_norm\":1,\"learning_rate\":0.5,\"samples_per_second\":8,",
                          "\"time\":", 1'700'000'000 + step, "}\n");
    }
  }
  v1::ReadJobMetricsRequest request;
  request.set_name("line-1");
  request.add_series("loss");
  request.set_points(100);
  const auto read = queries_.ReadJobMetrics(request);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->steps(), kSteps);
  ASSERT_EQ(read->series_size(), 1);
  const v1::MetricSeries& loss = read->series(0);
  EXPECT_LE(loss.values_size(), 100);
  EXPECT_GE(loss.values_size(), 50);
  ASSERT_EQ(loss.values_size(), loss.steps_size());
  EXPECT_EQ(*std::ranges::max_element(loss.values()), 99);
  EXPECT_EQ(loss.values(0), 5.0) << "a falling curve begins at its greatest";
  EXPECT_TRUE(std::ranges::is_sorted(loss.steps()));
  ASSERT_EQ(loss.times_size(), loss.steps_size());
  EXPECT_TRUE(std::ranges::is_sorted(loss.times()));
  EXPECT_EQ(loss.times(0), 1'700'000'000);
  EXPECT_EQ(*loss.times().rbegin(), 1'700'000'000 + kSteps - 1);

  request.clear_series();
  request.set_first_step(10);
  request.set_last_step(12);
  const auto few = queries_.ReadJobMetrics(request);
  ASSERT_TRUE(few.ok());
  ASSERT_GE(few->series_size(), 4) << "all that there are";
  EXPECT_THAT(few->series(0).steps(), ElementsAre(10, 11, 12));
  EXPECT_THAT(few->series(0).times(), ElementsAre(1'700'000'010, 1'700'000'011, 1'700'000'012));
  request.add_series("los");
  EXPECT_EQ(ReasonOf(queries_.ReadJobMetrics(request).status()), "INVALID_REQUEST");
  request.clear_series();
  request.set_points(1);
  EXPECT_EQ(ReasonOf(queries_.ReadJobMetrics(request).status()), "INVALID_REQUEST");
}

TEST_F(JobQueriesTest, OnlyARunningJobHasTimes) {
  AddJob();
  v1::ReadJobTimingRequest request;
  request.set_name("line-1");
  const auto timing = queries_.ReadJobTiming(request);
  ASSERT_TRUE(timing.ok());
  EXPECT_THAT(timing->members(), IsEmpty());
  EXPECT_EQ(timing->batch_size(), 8);
}

TEST_F(JobQueriesTest, OnlyARunningJobHasLinks) {
  AddJob();
  v1::ReadJobLinksRequest request;
  request.set_name("line-1");
  const auto links = queries_.ReadJobLinks(request);
  ASSERT_TRUE(links.ok());
  EXPECT_THAT(links->members(), IsEmpty());
  request.set_name("line-9");
  EXPECT_EQ(ReasonOf(queries_.ReadJobLinks(request).status()), "JOB_NOT_FOUND");
}

}  // namespace
}  // namespace muster::job_queries_test
