// Tests of jobs with logical workers that get workers of different device kinds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "services/coordinator/job/job.h"
#include "services/coordinator/testing/job_fixture.h"

namespace muster::job_device_kinds_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kOld[] = "1 device, 7 threads, avx512, Xeon";
constexpr char kNew[] = "1 device, 4 threads, avx2, Xeon";

class JobDeviceKindsTest : public JobTest {
 protected:
  JobDeviceKindsTest() {
    v1::Job record = Record();
    record.mutable_spec()->mutable_resources()->mutable_workers()->set_logical(8);
    job_ = Job(record, nullptr, /*term=*/1, now_);
  }

  void Prepared(const std::string& worker, const std::string& kind, int64_t step = 0) {
    v1::JobReport report = Say(v1::MEMBER_PREPARED, step);
    report.set_device_kind(kind);
    job_.Report(worker, &report, now_);
  }
  // All members are prepared, with these kinds of w-0 and w-1.
  void PrepareAll(const std::string& first, const std::string& second, int64_t step = 0) {
    for (const char* name : {"p-0", "p-1"}) Report(name, v1::MEMBER_PREPARED, step);
    Prepared("w-0", first, step);
    Prepared("w-1", second, step);
  }
  void RunWith(const std::string& kind) {
    Schedule();
    PrepareAll(kind, kind);
    ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING);
    ASSERT_EQ(job_.state(), v1::RUNNING) << job_.record().message();
    TakeEffects();
  }
  // The remaining members halt at `step`, and the job is scheduled again. Other processes take the
  // names of the lost ones.
  void GoOn(int64_t step) {
    for (const char* name : {"w-0", "w-1"}) {
      if (job_.Uses(name)) Report(name, v1::MEMBER_HALTED, step);
    }
    for (const char* name : {"p-0", "p-1"}) {
      v1::JobReport report = Say(v1::MEMBER_HALTED, step);
      report.set_oldest_version(step);
      job_.Report(name, &report, now_);
    }
    TakeEffects();
    const auto resume_point = job_.ResumesAt(now_);
    ASSERT_TRUE(resume_point.has_value());
    Schedule(resume_point->first_step, "", job_.plan());
  }
  // A free worker of kind kNew has warmed up for the job.
  void WarmUpOtherKind(const std::string& worker) {
    job_.BeginWarmUp(*job_.plan(), {worker}, now_);
    v1::JobPlan warm_up;
    ASSERT_TRUE(warm_up.ParseFromString(*job_.warm_up().plan()));
    v1::JobReport report = Say(v1::MEMBER_PREPARED);
    report.set_rehearsal(warm_up.rehearsal());
    report.set_device_kind(kNew);
    job_.Report(worker, &report, now_);
  }
  std::string MessageOf(const std::string& reason) {
    for (const v1::JobEvent& event : TakeEffects().events) {
      if (event.reason() == reason) return event.message();
    }
    return "";
  }
};

TEST_F(JobDeviceKindsTest, TheFirstWorkersMustBeAlike) {
  Schedule();
  PrepareAll(kOld, kNew);
  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_EQ(job_.record().reason(), "DEVICE_KINDS_DIFFER");
  EXPECT_EQ(
      job_.record().message(),
      "w-1 computes with 4 threads, avx2, w-0 with 7 threads, avx512: bits would differ; give "
      "all workers like devices and the same --threads_per_device, or remove "
      "resources.workers.logical");
}

TEST_F(JobDeviceKindsTest, AKindThatIsNotReportedIsNotCompared) {
  Schedule();
  PrepareAll(kOld, "");
  EXPECT_EQ(job_.state(), v1::RUNNING) << job_.record().message();
  EXPECT_EQ(job_.record().device_kind(), kOld);
}

TEST_F(JobDeviceKindsTest, AJoiningWorkerOfAnotherKindIsExcluded) {
  RunWith(kOld);
  EXPECT_EQ(job_.record().device_kind(), kOld);
  for (const bool has_restarted : {false, true}) {
    if (has_restarted) job_ = Job(job_.record(), job_.plan(), /*term=*/2, now_);
    TakeEffects();
    WarmUpOtherKind("w-2");
    EXPECT_EQ(job_.state(), v1::RUNNING);
    EXPECT_TRUE(job_.exclusions().IsOfOtherKind("w-2"));
    EXPECT_EQ(MessageOf("WORKER_CANNOT_JOIN"),
              "the job goes on without w-2: w-2 computes with 4 threads, avx2, the job with 7 "
              "threads, avx512: bits would differ");
  }
}

// The number of recoveries in a row is limited to 0 here, and that of unlike workers is not.
TEST_F(JobDeviceKindsTest, ASubstituteOfAnotherKindCostsNoRecovery) {
  v1::Job record = job_.record();
  record.mutable_spec()->mutable_restart()->set_max_restarts(1);
  job_ = Job(record, nullptr, /*term=*/1, now_);
  RunWith(kOld);
  job_.MemberLost("w-1", "gone", now_);
  for (int i = 0; i < 3; ++i) {
    GoOn(0);
    PrepareAll(kOld, kNew);
    ASSERT_EQ(job_.state(), v1::RECOVERING) << job_.record().message();
    EXPECT_EQ(job_.record().reason(), "DEVICE_KINDS_DIFFER");
    EXPECT_THAT(
        job_.record().message(),
        HasSubstr("w-1 (worker, rank 1) cannot join: w-1 computes with 4 threads, avx2, the "
                  "job with 7 threads, avx512"));
    EXPECT_EQ(job_.record().recovery().in_row(), 1) << "that of the lost worker";
    EXPECT_TRUE(job_.Uses("w-0"));
    EXPECT_FALSE(job_.Uses("w-1"));
    EXPECT_TRUE(job_.exclusions().IsOfOtherKind("w-1"));
  }
  GoOn(0);
  PrepareAll(kOld, kOld);
  EXPECT_EQ(job_.state(), v1::RUNNING) << job_.record().message();
  EXPECT_FALSE(job_.exclusions().IsOfOtherKind("w-1")) << "another process has this name";
}

TEST_F(JobDeviceKindsTest, AJobGoesOnWithAnotherKindIfNoWorkerOfItsOwnIsLeft) {
  RunWith(kOld);
  WarmUpOtherKind("w-2");
  ASSERT_TRUE(job_.exclusions().IsOfOtherKind("w-2"));
  ASSERT_TRUE(job_.Suspend(now_).ok());
  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_PAUSED, 0);
  Report("p-0", v1::MEMBER_RUNNING);
  ASSERT_EQ(job_.state(), v1::SUSPENDED) << job_.record().message();
  ASSERT_TRUE(job_.Resume(nullptr, now_).ok());
  Schedule();
  TakeEffects();
  PrepareAll(kNew, kNew);
  EXPECT_EQ(job_.state(), v1::RUNNING) << job_.record().message();
  EXPECT_EQ(job_.record().device_kind(), kNew);
  EXPECT_FALSE(job_.exclusions().IsOfOtherKind("w-2")) << "it has the job's kind now";
  EXPECT_EQ(
      MessageOf("DEVICE_KIND_CHANGED"),
      "none of its workers is of the former kind: the job computes with 4 threads, avx2 from now "
      "on, not with 7 threads, avx512; later bits may differ from those of a run without "
      "this change");
}

TEST_F(JobDeviceKindsTest, AResumedJobPrefersTheKindThatItTrainedWith) {
  RunWith(kOld);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_PAUSED, 0);
  ASSERT_EQ(job_.state(), v1::SUSPENDED) << job_.record().message();
  ASSERT_TRUE(job_.Resume(nullptr, now_).ok());
  Schedule();
  PrepareAll(kNew, kOld);
  EXPECT_EQ(job_.state(), v1::RECOVERING) << job_.record().message();
  EXPECT_FALSE(job_.Uses("w-0"));
  EXPECT_TRUE(job_.Uses("w-1"));
  EXPECT_EQ(job_.record().device_kind(), kOld);
}

}  // namespace
}  // namespace muster::job_device_kinds_test
