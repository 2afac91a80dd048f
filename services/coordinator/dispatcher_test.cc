#include "services/coordinator/dispatcher.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "lib/graph/zoo/zoo.h"
#include "lib/limits/limits.h"
#include "services/coordinator/plan_memory.h"
#include "services/coordinator/registry_fixture.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DispatcherTest : public RegistryFixture {
 protected:
  ~DispatcherTest() override {
    if (!go_.HasBeenNotified()) go_.Notify();
  }

  // As Tick() does, and waits for what comes of it.
  void Dispatch() {
    if (!go_.HasBeenNotified()) go_.Notify();
    dispatcher_.Dispatch();
    Settle();
  }
  void Settle() {
    dispatcher_.AwaitIdle();
    registry_->changes().AwaitAll();
  }

  void AttachPs(const std::string& name, int64_t memory_bytes) {
    v1::Hello hello = Hello(name);
    hello.set_memory_bytes(memory_bytes);
    const auto arrival =
        fleet_->Attach(hello, std::make_shared<StreamWaker>(std::function<void()>()), now_);
    ASSERT_TRUE(arrival.ok()) << arrival.status();
    attached_.push_back(arrival->attachment);
  }
  // For one worker or two.
  uint64_t AddElasticJob() {
    const uint64_t number = AddJob();
    JobRegistry::Turn turn(registry_.get());
    JobRegistry::Entry& entry = *turn.FindNumber(number);
    v1::ResourceSpec resources = entry.job.record().spec().resources();
    resources.mutable_workers()->set_max(2);
    EXPECT_TRUE(entry.job.Suspend(now_).ok());
    EXPECT_TRUE(entry.job.Resume(&resources, now_).ok());
    turn.Perform(entry);
    return number;
  }
  // Of a job that was started, on its ps.
  int64_t NeedOf(uint64_t number) {
    JobRegistry::Turn turn(registry_.get());
    const v1::JobPlan& plan = *turn.FindNumber(number)->job.plan();
    return MemoryOfPs(plan).begin()->second.With(plan.workers_size());
  }
  void Cancel(uint64_t number) {
    JobRegistry::Turn turn(registry_.get());
    JobRegistry::Entry& entry = *turn.FindNumber(number);
    EXPECT_TRUE(entry.job.Cancel(now_).ok());
    turn.Perform(entry);
  }

  std::vector<std::shared_ptr<Attachment>> attached_;
  absl::Notification go_;  // until then no model is built, and so no plan made
  Dispatcher dispatcher_{registry_.get(), fleet_.get(), [this](const v1::ModelSpec& spec) {
                           go_.WaitForNotification();
                           return BuildModel(spec);
                         }};
};

TEST_F(DispatcherTest, AJobStartsWhenItsWholeGangIsThere) {
  const uint64_t job = AddJob();
  Attach("w-0");
  Dispatch();
  EXPECT_EQ(View(job).state(), v1::QUEUED);

  Attach("p-0");
  Dispatch();

  const v1::Job view = View(job);
  EXPECT_EQ(view.state(), v1::PREPARING) << view.message();
  EXPECT_EQ(view.workers(0), "w-0");
  EXPECT_EQ(view.ps(0), "p-0");
  JobRegistry::Turn turn(registry_.get());
  EXPECT_EQ(turn.FindNumber(job)->job.plan()->graph().parameters_size(), 2)
      << "the model is built from the spec";
}

TEST_F(DispatcherTest, AModelThatWasBuiltWhenItWasSubmittedIsNotBuiltAgain) {
  auto graph = std::make_shared<v1::Graph>();
  v1::Parameter& parameter = *graph->add_parameters();
  parameter.set_name("as submitted");
  parameter.add_shape(4);
  const uint64_t job = AddJob(graph);
  Attach("w-0");
  Attach("p-0");
  Dispatch();
  ASSERT_EQ(View(job).state(), v1::PREPARING);
  {
    JobRegistry::Turn turn(registry_.get());
    JobRegistry::Entry& entry = *turn.FindNumber(job);
    EXPECT_EQ(entry.job.plan()->graph().parameters(0).name(), "as submitted");
    EXPECT_EQ(entry.graph, nullptr) << "the plan has it";
    EXPECT_TRUE(entry.job.Suspend(now_).ok());
    EXPECT_TRUE(entry.job.Resume(nullptr, now_).ok());
    turn.Perform(entry);
  }

  Dispatch();

  JobRegistry::Turn turn(registry_.get());
  const Job& again = turn.FindNumber(job)->job;
  ASSERT_EQ(again.plan()->generation(), 2);
  EXPECT_EQ(again.plan()->graph().parameters(0).name(), "as submitted");
}

// A member that failed to attach just before the coordinator came tries again after
// kAttachBackoffMax.
TEST_F(DispatcherTest, AfterAStartAJobWaitsForMembersThatBackOff) {
  const uint64_t job = AddElasticJob();
  Attach("p-0");
  Attach("w-0");
  now_ += limits::kAttachBackoffMax + absl::Seconds(1);
  Dispatch();
  EXPECT_EQ(View(job).state(), v1::QUEUED);

  Attach("w-1");
  Dispatch();

  ASSERT_EQ(View(job).state(), v1::PREPARING);
  EXPECT_EQ(View(job).workers_size(), 2);
}

TEST_F(DispatcherTest, AJobDoesNotWaitForeverForMoreMembersThanItNeeds) {
  const uint64_t job = AddElasticJob();
  Attach("p-0");
  Attach("w-0");
  Dispatch();  // from here on members can come back
  EXPECT_EQ(View(job).state(), v1::QUEUED);
  now_ += limits::kAttachBackoffMax + absl::Seconds(3);

  Dispatch();

  EXPECT_EQ(View(job).state(), v1::PREPARING);
}

TEST_F(DispatcherTest, MembersOfAPlanThatIsBeingMadeAreTaken) {
  Attach("w-0");
  Attach("p-0");
  const uint64_t first = AddJob();
  dispatcher_.Dispatch();
  const uint64_t second = AddJob();

  dispatcher_.Dispatch();
  go_.Notify();
  Settle();

  EXPECT_EQ(View(first).state(), v1::PREPARING);
  EXPECT_EQ(View(second).state(), v1::QUEUED);
}

TEST_F(DispatcherTest, AJobThatIsCancelledWhileItIsPlannedDoesNotStart) {
  Attach("w-0");
  Attach("p-0");
  const uint64_t job = AddJob();
  dispatcher_.Dispatch();
  {
    JobRegistry::Turn turn(registry_.get());
    JobRegistry::Entry& entry = *turn.FindNumber(job);
    EXPECT_TRUE(entry.job.Cancel(now_).ok());
    turn.Perform(entry);
  }
  go_.Notify();
  Settle();

  EXPECT_EQ(View(job).state(), v1::CANCELLED);
  EXPECT_EQ(View(job).generation(), 0);
}

TEST_F(DispatcherTest, AJobThatLosesAMemberWhileItIsPlannedWaitsForAnother) {
  const auto worker = Attach("w-0");
  Attach("p-0");
  const uint64_t job = AddJob();
  dispatcher_.Dispatch();
  EXPECT_TRUE(fleet_->Detach(*worker, Fleet::Departure::kOrderly));
  go_.Notify();
  Settle();
  EXPECT_EQ(View(job).state(), v1::QUEUED);

  Attach("w-1");
  Dispatch();

  EXPECT_EQ(View(job).state(), v1::PREPARING);
  EXPECT_EQ(View(job).workers(0), "w-1");
}

TEST_F(DispatcherTest, AJobThatNoPsIsLargeEnoughForSaysSoAndWaitsForOneThatIs) {
  const uint64_t job = AddJob();
  Attach("w-0");
  AttachPs("p-0", /*memory_bytes=*/64);
  Dispatch();
  Dispatch();

  EXPECT_EQ(View(job).state(), v1::QUEUED);
  EXPECT_EQ(View(job).reason(), "MEMORY_TOO_SMALL");
  EXPECT_THAT(View(job).message(), HasSubstr("the largest, p-0, has 64 (--memory_bytes)"));
  const uint64_t revision = View(job).revision();
  Dispatch();
  EXPECT_EQ(View(job).revision(), revision) << "said once";

  AttachPs("p-1", 1 << 20);
  Dispatch();

  EXPECT_EQ(View(job).state(), v1::PREPARING) << View(job).message();
  EXPECT_EQ(View(job).ps(0), "p-1");
}

// The second job starts when the first has ended, and so it does after a restart, when the plan of
// the first comes from the store.
TEST_F(DispatcherTest, AJobWaitsWhileOthersHaveThePsMemory) {
  Attach("w-0");
  Attach("w-1");
  const auto unbounded = Attach("p-0");
  const uint64_t probe = AddJob();
  Dispatch();
  const int64_t need = NeedOf(probe);
  ASSERT_GT(need, 0);
  Cancel(probe);
  EXPECT_TRUE(fleet_->Detach(*unbounded, Fleet::Departure::kOrderly));
  AttachPs("p-1", 2 * need - 1);

  const uint64_t first = AddJob();
  Dispatch();
  const uint64_t second = AddJob();
  Dispatch();
  Dispatch();

  EXPECT_EQ(View(first).state(), v1::PREPARING);
  EXPECT_EQ(View(second).state(), v1::QUEUED);
  EXPECT_EQ(View(second).reason(), "WAITS_FOR_MEMORY");
  EXPECT_THAT(View(second).message(),
              AllOf(HasSubstr(absl::StrCat("need up to ", need, " bytes on each of 1 ps")),
                    HasSubstr(absl::StrCat(need - 1, " of ", 2 * need - 1, " bytes, on p-1"))));

  Dispatcher restarted(registry_.get(), fleet_.get());
  for (int i = 0; i < 2; ++i) {
    restarted.Dispatch();
    restarted.AwaitIdle();
  }
  EXPECT_EQ(View(second).state(), v1::QUEUED);

  Cancel(first);
  Dispatch();

  EXPECT_EQ(View(second).state(), v1::PREPARING) << View(second).message();
}

}  // namespace
}  // namespace muster
