#include "services/coordinator/operations/job_filter.h"

#include <gtest/gtest.h>

#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::job_filter_test {
namespace {

v1::Job JobIn(v1::JobState state) {
  v1::Job job;
  job.set_state(state);
  (*job.mutable_spec()->mutable_labels())["team"] = "vision";
  return job;
}

TEST(JobFilterTest, MatchesByStateAndLabels) {
  v1::ListJobsRequest request;
  EXPECT_TRUE(JobFilter::Make(request.states(), "")->Matches(JobIn(v1::QUEUED)));
  request.add_states(v1::RUNNING);
  request.add_states(v1::FAILED);
  const auto filter = JobFilter::Make(request.states(), "team=vision");
  ASSERT_TRUE(filter.ok()) << filter.status();
  EXPECT_TRUE(filter->Matches(JobIn(v1::FAILED)));
  EXPECT_FALSE(filter->Matches(JobIn(v1::QUEUED)));
  EXPECT_FALSE(JobFilter::Make(request.states(), "team=text")->Matches(JobIn(v1::FAILED)));
}

TEST(JobFilterTest, StatesThatDoNotExistMatchNothing) {
  v1::ListJobsRequest request;
  request.mutable_states()->Add(-1);
  request.mutable_states()->Add(1000);
  for (int state = 0; state <= v1::CANCELLED; ++state) {
    const auto filter = JobFilter::Make(request.states(), "");
    EXPECT_FALSE(filter->Matches(JobIn(static_cast<v1::JobState>(state)))) << state;
  }
}

}  // namespace
}  // namespace muster::job_filter_test
