#include "services/coordinator/status_page/coordinator_status.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "lib/telemetry/metrics.h"
#include "services/coordinator/testing/made_up_jobs.h"

namespace muster::coordinator_status_test {
namespace {

TEST(CoordinatorStatusTest, WatchesWhatChangesFromNowOn) {
  std::string folder = ::testing::TempDir() + "/status-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  Metrics metrics;
  absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  const auto coordinator = Coordinator::Open(
      {.state_dir = folder, .metrics = &metrics, .clock = [&now] { return now; }});
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  CoordinatorStatus status(coordinator->get());
  v1::CreateJobRequest request;
  *request.mutable_spec() = LinearSpec();
  const auto old = (*coordinator)->users().CreateJob(request);
  ASSERT_TRUE(old.ok()) << old.status();

  const StatusSource::JobChanges changes = status.WatchJobs();
  EXPECT_FALSE(changes()) << "the page has listed the old job";

  const auto job = (*coordinator)->users().CreateJob(request);
  ASSERT_TRUE(job.ok()) << job.status();
  const auto created = changes();
  ASSERT_TRUE(created);
  ASSERT_EQ(created->jobs_size(), 1);
  EXPECT_EQ(created->jobs(0).name(), job->name());
  EXPECT_FALSE(changes());

  ASSERT_TRUE((*coordinator)->users().CancelJob(old->name()).ok());
  ASSERT_TRUE((*coordinator)->users().DeleteJob(old->name()).ok());
  const auto deleted = changes();
  ASSERT_TRUE(deleted);
  ASSERT_EQ(deleted->removed_size(), 1);
  EXPECT_EQ(deleted->removed(0), old->name());

  for (const char* name : {"p-0", "w-0"}) {
    v1::MemberReport report;
    *report.mutable_hello() = HelloOf(name);
    const auto attached =
        (*coordinator)
            ->members()
            .Attach(report, std::make_shared<StreamWaker>(std::function<void()>()));
    ASSERT_TRUE(attached.ok()) << attached.status();
    (*coordinator)->Settle();
  }
  const auto pass_a_second = [&] {
    for (int tick = 0; tick < 6; ++tick) {
      now += Coordinator::kTickInterval;
      (*coordinator)->Tick();
      (*coordinator)->Settle();
    }
  };
  pass_a_second();
  pass_a_second();
  ASSERT_EQ((*coordinator)->users().GetJob(job->name())->state(), v1::PREPARING);
  EXPECT_TRUE(changes());
  while (changes()) continue;
  pass_a_second();
  EXPECT_FALSE(changes()) << "an active job that does not change";
}

}  // namespace
}  // namespace muster::coordinator_status_test
